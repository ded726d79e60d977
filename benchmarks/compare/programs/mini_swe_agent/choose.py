"""mini-swe-agent: a subclass continues from the messages of the first run; the files are copied by code of our own."""

import json
import shutil
import subprocess

from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.environments.local import LocalEnvironment
from minisweagent.exceptions import InterruptAgentFlow
from minisweagent.models.litellm_model import LitellmModel

from benchmarks.compare.arguments import work

settings = get_config_from_spec("mini.yaml")["agent"]
repository = work / "repository"


class ContinuedAgent(DefaultAgent):
    """Not part of mini-swe-agent: continue from given messages."""

    def continue_from(self, messages: list[dict], text: str) -> None:
        self.messages = [*messages, self.model.format_message(role="user", content=text)]
        while self.messages[-1]["role"] != "exit":
            try:
                self.step()
            except InterruptAgentFlow as end:
                self.add_messages(*end.messages)
        self.save(self.config.output_path)


def build(model: str, directory: str) -> ContinuedAgent:
    return ContinuedAgent(
        LitellmModel(model_name=f"openai/{model}", cost_tracking="ignore_errors"),
        LocalEnvironment(cwd=str(work / directory)),
        system_template=settings["system_template"],
        instance_template=settings["instance_template"],
        output_path=work / f"{model}.traj.json",
    )


def load(model: str) -> list[dict]:
    """The messages of a run, without its submission: a call and the message of the exit."""
    return json.loads((work / f"{model}.traj.json").read_text())["messages"][:-2]


def test(attempt: str) -> int:
    return subprocess.run(["python3", "-m", "unittest", "-q"], cwd=work / attempt).returncode


build("coder", "repository").run("Prepare the work.")
for attempt in ("first", "second"):
    shutil.copytree(repository, work / attempt)
    build(attempt, attempt).continue_from(load("coder"), "Make the tests pass.")
winner, loser = sorted(("first", "second"), key=test)
shutil.rmtree(repository)
shutil.copytree(work / winner, repository)
build("closer", "repository").continue_from(load(winner), "Check the result.")
stray = (work / loser / "stray.txt").read_text()
(work / "loser.txt").write_text((work / f"{loser}.traj.json").read_text() + stray)
