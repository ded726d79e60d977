from __future__ import annotations
import json
from collections.abc import Mapping, Sequence
from typing import Any
from langgraph_takeover.handoff.agents.adapter import (AgentCommand, AgentOutput, Api, Asker, History, Launch, NativeCall, NativeSession, ProgramFiles, Setup)
from langgraph_takeover.handoff.agents.json_lines import read_json_lines, write_json_lines
from langgraph_takeover.handoff.agents.shell_calls import write_shell_command

class OpenCode:
    name = "opencode"
    api: Api = "chat"
    program = ProgramFiles(executable="opencode", oldest="1.18.0", newest="1.18.33")
    def setup(self, launch):
        config = {
            "$schema": "https://opencode.ai/config.json",
            "model": f"bridge/{launch.model}", "small_model": f"bridge/{launch.model}",
            "autoupdate": False, "share": "disabled", "permission": "allow",
            "compaction": {"auto": False, "prune": False},
            "snapshot": False, "lsp": False, "formatter": False,
            "enabled_providers": ["bridge"],
            "agent": {"title": {"disable": True}},
            "provider": {"bridge": {"npm": "@ai-sdk/openai-compatible", "name": "bridge", "options": {"baseURL": f"http://127.0.0.1:{launch.port}/v1", "apiKey": "none", "timeout": False},
                "models": {launch.model: {"name": launch.model, "limit": {"context": 100000000, "output": 32000}}}}},
        }
        return Setup(files={".config/opencode/opencode.json": json.dumps(config)}, environment={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOCOMPACT": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1", "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1"})
    def command(self, launch):
        session = ("-s", launch.session_id) if launch.session_id else ("--title", "Takeover")
        return AgentCommand(argv=(*launch.program, "run", "--format", "json", *session), stdin=launch.message)
    def classify(self, body, headers):
        return "main" if body.get("tools") else "aside"
    def strip_markers(self, messages): return list(messages)
    def session_glob(self, session_id, workspace): return ""
    def write_call(self, action, workspace):
        return NativeCall(name="bash", arguments={"command": write_shell_command(action), "description": "x"})
    def read_output(self, stdout, exit_code):
        session_id, message, is_complete = None, "", False
        for line in read_json_lines(stdout):
            session_id = line.get("sessionID") or session_id
        return AgentOutput(session_id=session_id, is_complete=is_complete and exit_code in (0, None), message=message)
