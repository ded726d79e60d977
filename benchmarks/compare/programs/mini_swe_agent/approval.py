"""mini-swe-agent: the interactive agent asks at its terminal; a subclass continues after a restart and asks again."""

import json

from minisweagent.agents.interactive import InteractiveAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments.local import LocalEnvironment
from minisweagent.exceptions import InterruptAgentFlow
from minisweagent.models.litellm_model import LitellmModel

from benchmarks.compare.arguments import phase, work

settings = get_config_from_spec("mini.yaml")["agent"]
trajectory = work / "run.traj.json"


class ContinuedAgent(InteractiveAgent):
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
    mode="confirm",
    whitelist_actions=["(?!.*rm )"],
    confirm_exit=False,
    system_template=settings["system_template"],
    instance_template=settings["instance_template"],
    output_path=trajectory,
)
if phase == "start":
    agent.run("Make the tests pass.")
else:
    agent.continue_from(json.loads(trajectory.read_text())["messages"])
