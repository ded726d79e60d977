"""mini-swe-agent: two runs in one directory; the second gets what the first submitted as part of its task."""

from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

from benchmarks.compare.arguments import work

settings = get_config_from_spec("mini.yaml")["agent"]


def run(model: str, task: str) -> str:
    agent = DefaultAgent(
        LitellmModel(model_name=f"openai/{model}", cost_tracking="ignore_errors"),
        LocalEnvironment(cwd=str(work / "repository")),
        system_template=settings["system_template"],
        instance_template=settings["instance_template"],
    )
    return agent.run(task)["submission"]


reason = run("finder", "Make the tests pass.")
run("fixer", f"Make the tests pass. The finder hands over to you: {reason}")
