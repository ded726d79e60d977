"""Readers of external agents: Codex, Claude Code, Qwen Code and opencode, and the search for their sessions."""
