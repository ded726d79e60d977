"""mini-swe-agent: an agent with a shell, whose commands run in the repository itself, each in a new shell."""

from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

from benchmarks.compare.arguments import work

settings = get_config_from_spec("mini.yaml")["agent"]
agent = DefaultAgent(
    LitellmModel(model_name="openai/coder", cost_tracking="ignore_errors"),
    LocalEnvironment(cwd=str(work / "repository")),
    system_template=settings["system_template"],
    instance_template=settings["instance_template"],
)
agent.run("Make the tests pass.")
