"""mini-swe-agent: one agent per thread of Python, as in its batch mode, but in one directory."""

from concurrent.futures import ThreadPoolExecutor

from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.litellm_model import LitellmModel

from benchmarks.compare.arguments import phase, work

settings = get_config_from_spec("mini.yaml")["agent"]


def run(model: str) -> None:
    agent = DefaultAgent(
        LitellmModel(model_name=f"openai/{model}", cost_tracking="ignore_errors"),
        LocalEnvironment(cwd=str(work / "repository")),
        system_template=settings["system_template"],
        instance_template=settings["instance_template"],
    )
    agent.run("Improve the documentation.")


with ThreadPoolExecutor() as pool:
    list(pool.map(run, [f"{phase}-{number}" for number in (1, 2, 3)]))
run("reader")
