"""Real command lines of external agents, run outside any sandbox with a home of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from langgraph_takeover.nodes.external.apis import Api

from ...conftest import skip_missing_agent

AGENTS_VARIABLE = "TAKEOVER_TEST_AGENTS"
"""Directory with the programs `codex`, `claude`, `opencode`, `qwen`, `mini`."""
TASK = "Create the file a.txt, then check it."


class ExternalAgent(NamedTuple):
    """How to run an agent, and how its shell tool is called."""

    program: str
    api: Api
    tool: str
    argument: str
    other_arguments: dict[str, Any]
    model: str

    def build_args(self, command: str) -> dict[str, Any]:
        return {self.argument: command, **self.other_arguments}


AGENTS = {
    "codex": ExternalAgent("codex", "responses", "exec_command", "cmd", {}, "gpt-5.5"),
    "claude-code": ExternalAgent(
        "claude", "messages", "Bash", "command", {"description": "d"}, "claude-sonnet-4-5"
    ),
    "opencode": ExternalAgent("opencode", "chat", "bash", "command", {"description": "d"}, "m"),
    "qwen-code": ExternalAgent("qwen", "chat", "run_shell_command", "command", {"is_background": False}, "m"),
    "mini-swe-agent": ExternalAgent("mini", "chat", "bash", "command", {}, "m"),
}

_DAY_MS = "86400000"
_CODEX_CONFIG = """\
model = "{model}"
model_provider = "bridge"
sandbox_mode = "danger-full-access"
approval_policy = "never"
check_for_update_on_startup = false
web_search = "disabled"
[model_providers.bridge]
name = "bridge"
base_url = "{url}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
stream_idle_timeout_ms = 86400000
[analytics]
enabled = false
[agents]
enabled = false
[features]
plugins = false
remote_plugin = false
apps = false
goals = false
enable_request_compression = false
"""


def find_program(agent: ExternalAgent) -> str:
    """Return the agent's program; skips the test if it is not installed."""
    directories = [os.environ.get(AGENTS_VARIABLE, ""), os.environ.get("PATH", "")]
    path = shutil.which(agent.program, path=os.pathsep.join(filter(None, directories)))
    if path is None:
        name = "claude-code" if agent.program == "claude" else agent.program
        skip_missing_agent(
            name,
            f"{agent.program} is not installed (put it on PATH, or its directory into {AGENTS_VARIABLE})",
        )
    return path


def start_agent(agent: ExternalAgent, url: str, home: Path, work: Path) -> subprocess.Popen[str]:
    """Start the agent on `TASK`, with its requests to a bridge at `url`."""
    command, environment = _configure(agent, find_program(agent), url, home)
    subprocess.run(["git", "init", "-q", str(work)], check=True)
    return subprocess.Popen(
        command,
        cwd=work,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "NO_PROXY": "127.0.0.1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _configure(agent: ExternalAgent, program: str, url: str, home: Path) -> tuple[list[str], dict[str, str]]:
    match agent.program:
        case "codex":
            (home / ".codex").mkdir()
            (home / ".codex/config.toml").write_text(_CODEX_CONFIG.format(url=url, model=agent.model))
            return [program, "exec", "--json", TASK], {}
        case "claude":
            options = ["--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"]
            return [
                program,
                "-p",
                TASK,
                *options,
                "--model",
                agent.model,
                "--tools",
                "Bash,Edit,Read,Write",
            ], {
                "ANTHROPIC_BASE_URL": url,
                "ANTHROPIC_API_KEY": "none",
                "IS_SANDBOX": "1",
                "CLAUDE_CODE_MAX_RETRIES": "0",
                "API_TIMEOUT_MS": _DAY_MS,
                "API_FORCE_IDLE_TIMEOUT": "0",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
            }
        case "opencode":
            no_limits = {"timeout": False, "headerTimeout": False, "chunkTimeout": False}
            provider = {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{url}/v1", "apiKey": "none", **no_limits},
                "models": {agent.model: {"name": agent.model}},
            }
            config = {
                "provider": {"bridge": provider},
                "model": f"bridge/{agent.model}",
                "small_model": f"bridge/{agent.model}",
                "permission": "allow",
                "autoupdate": False,
            }
            directory = home / ".config/opencode"
            directory.mkdir(parents=True)
            (directory / "opencode.json").write_text(json.dumps(config))
            return [program, "run", "--format", "json", TASK], {"OPENCODE_DISABLE_MODELS_FETCH": "1"}
        case "qwen":
            options = ["--yolo", "--auth-type", "openai", "--output-format", "stream-json"]
            return [program, "-p", TASK, *options], {
                "OPENAI_BASE_URL": f"{url}/v1",
                "OPENAI_API_KEY": "none",
                "OPENAI_MODEL": agent.model,
                "QWEN_CODE_API_TIMEOUT_MS": _DAY_MS,
            }
        case _:
            options = ["-y", "--exit-immediately", "-c", "mini.yaml", "-o", str(home / "run.json")]
            return [program, "-m", f"openai/{agent.model}", "-t", TASK, *options], {
                "OPENAI_API_BASE": f"{url}/v1",
                "OPENAI_API_KEY": "none",
                "MSWEA_CONFIGURED": "true",
                "MSWEA_COST_TRACKING": "ignore_errors",
                "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
                "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            }
