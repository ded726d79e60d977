"""Names of the external agents, without importing their adapters."""

AGENT_NAMES = ("codex", "claude-code", "mini", "qwen-code", "opencode")
