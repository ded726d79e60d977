"""Scripts of Codex: the calls in them, their results, and Codex's records of both."""
