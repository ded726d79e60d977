from __future__ import annotations
import json
from collections.abc import Mapping, Sequence
from typing import Any
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph_takeover.handoff.agents.adapter import *
from langgraph_takeover.handoff.agents.adapter import (AgentCommand, AgentOutput, Api, Asker, History, Launch, NativeCall, NativeSession, ProgramFiles, Setup)
from langgraph_takeover.handoff.agents.json_lines import read_json_lines, write_json_lines
from langgraph_takeover.handoff.agents.session_names import derive_uuid, format_time, replace_by_dashes
from langgraph_takeover.handoff.agents.session_steps import list_session_steps
from langgraph_takeover.handoff.agents.shell_calls import write_shell_command
from langgraph_takeover.handoff.trace.action import Action

_SETTINGS = {
    "general": {"enableAutoUpdate": False, "gitCoAuthor": {"commit": False, "pr": False}},
    "model": {
        "chatCompression": {"contextPercentageThreshold": 0},
        "skipNextSpeakerCheck": True,
        "skipLoopDetection": True,
        "generationConfig": {"timeout": 86400000, "maxRetries": 0, "contextWindowSize": 100000000},
    },
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
    "memory": {"enableManagedAutoMemory": False},
    "security": {"auth": {"selectedType": "openai"}},
    "ui": {"enableFollowupSuggestions": False},
}

class QwenCode:
    name = "qwen-code"
    api: Api = "chat"
    program = ProgramFiles(executable="qwen", interpreter="node", oldest="0.15.0", newest="0.15.10")
    def setup(self, launch):
        return Setup(files={".qwen/settings.json": json.dumps(_SETTINGS)}, environment={"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"http://127.0.0.1:{launch.port}/v1", "OPENAI_MODEL": launch.model, "QWEN_CODE_NO_RELAUNCH": "1"})
    def command(self, launch):
        session = ("--resume", launch.session_id) if launch.session_id else ("--session-id", derive_uuid(launch))
        return AgentCommand(argv=(*launch.program, "--yolo", "--auth-type", "openai", "--output-format", "stream-json", *session), stdin=launch.message)
    def classify(self, body, headers):
        return "main" if body.get("tools") else "aside"
    def strip_markers(self, messages): return list(messages)
    def session_glob(self, session_id, workspace): return f".qwen/projects/*/chats/{session_id}.jsonl"
    def write_call(self, action, workspace):
        return NativeCall(name="run_shell_command", arguments={"command": write_shell_command(action), "is_background": False})
    def read_output(self, stdout, exit_code):
        session_id, message, is_complete = None, "", False
        for line in read_json_lines(stdout):
            session_id = line.get("session_id") or session_id
            is_complete = line.get("type") == "result" and not line.get("is_error")
            if line.get("type") == "result":
                message = str(line.get("result") or line.get("error") or line.get("subtype"))
        return AgentOutput(session_id=session_id, is_complete=is_complete and exit_code in (0, None), message=message)
