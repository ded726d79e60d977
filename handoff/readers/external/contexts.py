"""Contexts that agents put into messages of the user, separated from what the user wrote."""

from __future__ import annotations

import re
from typing import NamedTuple

from langgraph_takeover.handoff.trace.events import TraceFormat

_TAGS: dict[TraceFormat, frozenset[str]] = {
    "codex": frozenset({
        "environment_context", "user_instructions", "permissions", "collaboration_mode", "skill", "skills",
        "skills_instructions", "turn_aborted", "user_shell_command", "subagent_notification", "apps_instructions",
        "catalog_apps_instructions", "plugins_instructions", "recommended_plugins", "model_switch", "context_window",
        "context_window_reminder", "context_window_guidance", "codex_delegation", "codex_internal_context", "user_action",
        "rollout_budget", "token_budget", "user_verification_notice", "startup_context", "personality_spec",
        "model_instructions", "environments_instructions", "current_time_reminder", "image_resize_notice",
        "agent_message_board_notification", "guardian_context_omission", "hook_prompt", "INSTRUCTIONS",
    }),
    "claude-code": frozenset({
        "ide_opened_file", "ide_selection", "ide_diagnostics", "teammate-message", "agent-message", "cross-session-message",
        "task-notification", "command-name", "command-message", "command-args", "local-command-stdout",
        "local-command-stderr", "local-command-caveat", "bash-input", "bash-stdout", "bash-stderr", "user-memory-input",
        "user-prompt-submit-hook", "tick", "fetched-web-content", "untrusted-widget-state",
    }),
    "qwen-code": frozenset({"task-notification", "state_snapshot"}),
}  # fmt: skip
_REQUEST_TAGS = {"teammate-message", "agent-message", "cross-session-message", "codex_delegation"}
"""Blocks with a request of another agent."""
_OPENING = re.compile(r"\s*<([A-Za-z][\w-]{1,50})(?: [^<>]{0,2000})?>")
_CODEX_GUIDE = re.compile(r"\s*# AGENTS\.md instructions\b[^\n]{0,5000}\n\s*(?=<INSTRUCTIONS>)")
_CODEX_EDITOR = re.compile(r"\s*# Context from my IDE setup:")
_CODEX_REQUEST = "\n## My request for Codex:"
_CODEX_IMAGE = re.compile(r"\s*(?:<image(?: [^<>]{0,5000})?>|</image>)\s*")


class SeparatedText(NamedTuple):
    """A text of the role of the user, in its two parts."""

    own: str
    """What the user wrote; empty if an agent wrote all of it."""
    requests: tuple[str, ...] = ()
    """What another agent asked for."""


def separate_contexts(text: str, agent: TraceFormat) -> SeparatedText:
    """Separate the contexts of an agent from the user's words: the complete blocks of its tags at the start of the text.

    A tag that is not closed, or that stands later in the text, is the user's own.
    """
    tags = _TAGS.get(agent, frozenset())
    requests: list[str] = []
    position = 0
    if agent == "codex":
        guide = _CODEX_GUIDE.match(text)
        position = guide.end() if guide else 0
        editor = _CODEX_EDITOR.match(text)
        start = text.find(_CODEX_REQUEST, editor.end()) if editor else -1
        position = start + len(_CODEX_REQUEST) if start >= 0 else position
        if _CODEX_IMAGE.fullmatch(text):
            return SeparatedText("")
    while (opening := _OPENING.match(text, position)) and opening[1] in tags:
        end = text.find(f"</{opening[1]}", opening.end())
        close = text.find(">", end) if end >= 0 else -1
        if close < 0:
            break
        if opening[1] in _REQUEST_TAGS:
            requests.append(text[opening.end() : end].strip())
        position = close + 1
    return SeparatedText(text[position:].strip(), tuple(requests))
