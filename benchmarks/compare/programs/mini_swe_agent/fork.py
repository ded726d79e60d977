"""mini-swe-agent: a subclass continues from the first messages of a trajectory; the files stay as they are."""

import json

from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments.local import LocalEnvironment
from minisweagent.exceptions import InterruptAgentFlow
from minisweagent.models.litellm_model import LitellmModel

from benchmarks.compare.arguments import phase, work

settings = get_config_from_spec("mini.yaml")["agent"]


class ContinuedAgent(DefaultAgent):
    """Not part of mini-swe-agent: continue from given messages."""

    def continue_from(self, messages: list[dict]) -> None:
        self.messages = messages
        while self.messages[-1]["role"] != "exit":
            try:
                self.step()
            except InterruptAgentFlow as end:
                self.add_messages(*end.messages)


agent = ContinuedAgent(
    LitellmModel(
        model_name="openai/coder" if phase == "start" else "openai/second-coder",
        cost_tracking="ignore_errors",
    ),
    LocalEnvironment(cwd=str(work / "repository")),
    system_template=settings["system_template"],
    instance_template=settings["instance_template"],
    output_path=work / "run.traj.json",
)
if phase == "start":
    agent.run("Make the tests pass.")
else:
    saved = json.loads((work / "run.traj.json").read_text())["messages"]
    agent.continue_from(saved[:6])  # two messages of the prompt, then a call and its result per step
