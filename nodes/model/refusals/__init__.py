"""What a refusal of an endpoint says: that the prompt exceeds the window, or how long to wait."""
