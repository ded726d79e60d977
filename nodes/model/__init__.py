"""Chat models: calls, errors, usage, and the actions in their replies."""
