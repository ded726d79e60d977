"""External agents: their model requests, answered by the runtime."""
