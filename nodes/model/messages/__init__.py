"""Messages of a conversation: what only their provider understands, thoughts, and what endpoints refuse."""
