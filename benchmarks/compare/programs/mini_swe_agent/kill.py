"""mini-swe-agent: the trajectory is saved after each step; a subclass continues from the file."""

import json

from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments.local import LocalEnvironment
from minisweagent.exceptions import InterruptAgentFlow
from minisweagent.models.litellm_model import LitellmModel

from benchmarks.compare.arguments import phase, work

settings = get_config_from_spec("mini.yaml")["agent"]
trajectory = work / "run.traj.json"


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
    LitellmModel(model_name="openai/coder", cost_tracking="ignore_errors"),
    LocalEnvironment(cwd=str(work / "repository")),
    system_template=settings["system_template"],
    instance_template=settings["instance_template"],
    output_path=trajectory,
)
if phase == "start":
    agent.run("Make the tests pass.")
else:
    agent.continue_from(json.loads(trajectory.read_text())["messages"])
