"""Start or resume mini-swe-agent: `python mini_driver.py MODEL FILE <MESSAGE`.

The adapter writes this file into the sandbox, because mini-swe-agent itself cannot resume. FILE holds the messages of a
session. A session whose first message is not a system prompt is a written history: its first message is the task.
"""

import json
import sys
from pathlib import Path

from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir, get_config_from_spec
from minisweagent.environments import get_environment
from minisweagent.models import get_model

_UNLIMITED = {"step_limit": 0, "cost_limit": 0.0, "wall_time_limit_seconds": 0}
_SECONDS_OF_A_DAY = 86_400


class ResumableAgent(DefaultAgent):  # type: ignore[misc]
    """Replaces or extends the messages that `run` makes, before the first step."""

    history: list = []  # type: ignore[type-arg]  # noqa: RUF012
    message = ""
    messages: list  # type: ignore[type-arg]

    def step(self) -> list:  # type: ignore[type-arg]
        if self.n_calls == 0:
            is_complete = bool(self.history) and self.history[0]["role"] == "system"
            self.messages = self.history if is_complete else [*self.messages, *self.history[1:]]
            if self.message:
                self.add_messages(self.model.format_message(role="user", content=self.message))
            self.save(self.config.output_path)
        return super().step()  # type: ignore[no-any-return]


def main(model_name: str, path: Path, message: str) -> None:
    """Run the agent until it submits. Without MESSAGE, a session resumes at its pending request."""
    history = json.loads(path.read_text())["messages"] if path.exists() else []
    # By its name alone, a file of the repository would be found first.
    config = get_config_from_spec(builtin_config_dir / "mini.yaml")
    options = config["model"].get("model_kwargs", {}) | {"timeout": _SECONDS_OF_A_DAY, "max_retries": 0}
    model = get_model(config=config["model"] | {"model_name": model_name, "model_kwargs": options})
    environment = get_environment(config["environment"], default_type="local")
    agent = ResumableAgent(model, environment, **config["agent"] | _UNLIMITED | {"output_path": path})
    agent.history = [each for each in history if each["role"] != "exit"]
    agent.message = message if history else ""
    print(json.dumps({"type": "session", "session_id": path.stem}), flush=True)
    result = agent.run(history[0]["content"] if history else message)
    print(json.dumps({"type": "result", "status": result["exit_status"], "message": result["submission"]}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.stdin.read())
