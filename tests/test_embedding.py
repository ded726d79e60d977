"""Every block of code in docs/embedding.md runs, in order, as one program that a reader would type."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "embedding.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_every_block_runs(tmp_path: Path) -> None:
    from evals.tasks import BUNDLED, load_tasks

    (task,) = load_tasks(BUNDLED, ["galley__galley-31"])
    task.check_out(tmp_path)
    (tmp_path / task.id).rename(tmp_path / "repository")
    before = (tmp_path / "repository" / "galley" / "wrap.py").read_text()
    # The model that knows one task takes its statement for the prompt, and any machine will do.
    program = "import trial\n" + "".join(
        block.replace('"Make the tests pass."', "trial.TASK.prompt")
        .replace('backend="host"', "backend=trial.default_backend()")
        .replace("done =", "outcome =")
        .replace("asyncio.run(main())", "asyncio.run(main())\nwith open_home('work') as home:\n"
                 "    outcome = resume(home, 'async', model=model, sandbox=machine)")
        + f"print('=====', {number}, outcome.stop_reason, outcome.steps)\n"
        for number, block in enumerate(BLOCKS)
    )  # fmt: skip
    (tmp_path / "program.py").write_text(program)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    path = os.pathsep.join([str(ROOT), str(ROOT / "examples")])
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=clean | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    ends = re.findall(r"^===== (\d+) (\w+) \d+$", done.stdout, re.MULTILINE)
    reasons = ["finished"] * 5 + ["handoff"] + ["finished"] * 3
    assert ends == [(str(number), reason) for number, reason in enumerate(reasons)]
    assert (tmp_path / "repository" / "galley" / "wrap.py").read_text() == before
    assert {each.name for each in (tmp_path / "work").iterdir()} >= {"takeover.sqlite", "records", "machines"}


def test_names_in_the_text_are_real() -> None:
    import graph
    from nodes.settings import Equipment
    from nodes.team import Team

    for name in re.findall(r"`(Bad\w+|NoSuch\w+|ThreadTaken|NotWaiting)`", TEXT):
        assert hasattr(graph, name), name
    for name in re.findall(r"\b(max_\w+|model_t\w+|offer_handoff|policy|points|protocol)=", TEXT):
        assert name in {**Equipment.model_fields, **Team.model_fields} or name == "max_retries", name
