"""Harbor's own model accepts every ATIF document that the commands write."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, get_args

import pytest

from langgraph_takeover.evals.export import main as export
from langgraph_takeover.evals.publish import main as publish
from langgraph_takeover.handoff.agents.session_files import AGENTS
from langgraph_takeover.handoff.points import detectors
from langgraph_takeover.handoff.readers import read_traces
from langgraph_takeover.handoff.trace.events import Continuation, Event, Trace, TraceFormat, Usage
from langgraph_takeover.sandbox.interface import FileChange

from ..command_line import call_main
from ..handoff.readers.atif_examples import EXAMPLES
from ..handoff.readers.session_rows import mini_run
from ..harbor import Harbor, create_environment
from .models.test_replay import RECORDINGS

pytestmark = pytest.mark.slow
STEPS = (("ls", 0, "src"), ("sed -i 's/a/b/' src/x.py", 0, ""), ("pytest -q", 1, "1 failed in 0.10s"))


@pytest.fixture(scope="module")
def harbor(tmp_path_factory: pytest.TempPathFactory) -> Harbor:
    return create_environment(tmp_path_factory.mktemp("harbor") / "env")


SESSIONS = Path(__file__).parents[1] / "handoff" / "readers" / "sessions"


def export_files(source: Path, out: Path) -> list[Path]:
    """Export all traces below a directory; return the documents, which contain the identical traces."""
    done = call_main(export, source, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
    documents = sorted(out.iterdir())
    written = [trace for path in documents for trace in read_traces(path)]
    sources = sorted(each for each in source.rglob("*") if each.suffix in (".json", ".jsonl"))
    originals = [trace for path in sources for trace in read_traces(path)]
    assert sorted(map(repr, written)) == sorted(map(repr, originals))
    return documents


def write(directory: Path, documents: dict[str, Any]) -> Path:
    directory.mkdir()
    for name, document in documents.items():
        (directory / f"{name.replace(' ', '-')}.json").write_text(json.dumps(document))
    return directory


def test_the_validator_refuses_own_fields_outside_extra(harbor: Harbor, tmp_path: Path) -> None:
    document = json.loads(json.dumps(EXAMPLES["images and audio"]))
    document["steps"][1]["metrics"]["estimated"] = False
    (path,) = write(tmp_path / "old", {"old": document}).iterdir()
    (errors,) = harbor.validate([path]).values()
    assert "metrics.estimated" in errors[0]


def test_recordings_of_every_format(harbor: Harbor, tmp_path: Path) -> None:
    newer = {**RECORDINGS["swe-agent 1"], "replay_config": "{}"}
    recorded = {**RECORDINGS, "mini v1": mini_run(*STEPS), "swe-agent 1": newer}
    directory = write(tmp_path / "in", recorded)
    for agent in {*AGENTS} - {"aider"}:  # whose histories are Markdown
        (path,) = SESSIONS.glob(f"{agent}.*")
        shutil.copy(path, directory)
    documents = export_files(directory, tmp_path / "out")
    assert harbor.validate(documents) == {}
    formats = {trace.format for path in documents for trace in read_traces(path) if isinstance(trace, Trace)}
    assert formats == {*get_args(TraceFormat)} - {"takeover", "aider"}


def test_real_recordings(harbor: Harbor, real_data: Path, tmp_path: Path) -> None:
    assert call_main(export, real_data / "trajectories", "--out", tmp_path / "out").returncode == 0
    documents = list((tmp_path / "out").iterdir())
    assert len(documents) > 90
    assert harbor.validate(documents) == {}


def test_documents_of_other_agents_are_valid_again(harbor: Harbor, tmp_path: Path) -> None:
    examples = write(tmp_path / "in", EXAMPLES)
    images = {examples / "images" / "1.png", examples / "sound" / "1.wav"}
    documents = export_files(examples, tmp_path / "out")
    for path in images:
        path.parent.mkdir()
        path.touch()
    assert harbor.validate(examples.glob("*.json")) == {}
    assert harbor.validate(documents) == {}
    assert len(documents) == len(EXAMPLES) + 1


def test_traces_and_records_of_a_run(harbor: Harbor, complete_run: Path, tmp_path: Path) -> None:
    documents = export_files(complete_run / "traces", tmp_path / "traces")
    assert len([path for path in documents if "continues" in json.loads(path.read_text())["extra"]]) == 35
    records = sorted(complete_run.rglob("record.json"))
    assert len(records) == 5
    copies = write(tmp_path / "in", {path.parent.name: json.loads(path.read_text()) for path in records})
    assert harbor.validate([*documents, *export_files(copies, tmp_path / "records")]) == {}
    done = call_main(publish, complete_run, "--out", tmp_path / "dataset")
    assert done.returncode == 0, done.stderr
    assert harbor.validate((tmp_path / "dataset" / "trajectories").iterdir()) == {}


def build_chain(tmp_path: Path) -> list[Trace]:
    """Three takeovers in a row, and a second successor of the first trace."""
    (tmp_path / "run.json").write_text(json.dumps(mini_run(*STEPS)))
    (base,) = read_traces(tmp_path / "run.json")
    assert isinstance(base, Trace)
    point = detectors.list_points(base.events, base.base_directories)[0]
    usage = Usage(prompt_tokens=9, completion_tokens=1)
    events = [
        event.model_copy(update={"usage": usage if event.kind == "action" else None}) for event in base.events
    ]
    traces = [base.model_copy(update={"id": "first", "format": "takeover", "events": tuple(events)})]
    for name, before in (("second", "first"), ("third", "second"), ("fourth", "third"), ("other", "first")):
        link = Continuation(trace=before, record=f"{before}.r", point=point, view="trace")
        traces.append(traces[0].model_copy(update={"id": name, "continues": link}))
    return traces


def test_several_takeovers_in_a_row(harbor: Harbor, tmp_path: Path) -> None:
    chain = {trace.id: trace.model_dump(mode="json") for trace in build_chain(tmp_path)}
    documents = {path.stem: path for path in export_files(write(tmp_path / "in", chain), tmp_path / "out")}
    assert harbor.validate(documents.values()) == {}
    content = {name: json.loads(path.read_text()) for name, path in documents.items()}
    assert {document["session_id"] for document in content.values()} == {"first"}
    assert {document["trajectory_id"] for document in content.values()} == set(chain)
    assert content["second"]["continued_trajectory_ref"] == "third.json"
    assert content["third"]["continued_trajectory_ref"] == "fourth.json"
    assert [one["file"] for one in content["first"]["extra"]["continued_by"]] == ["other.json", "second.json"]


def test_unusual_traces(harbor: Harbor, tmp_path: Path) -> None:
    def event(index: int, kind: str, **more: Any) -> Event:
        return Event.model_validate(
            {"index": index, "kind": kind, "tool": "shell", "text": "caf\udce9", **more}
        )

    change = FileChange(path="caf\udce9", before=None, after="0" * 64)
    events = (
        event(0, "observation", exit_code=-9),
        event(1, "action", usage=Usage(), arguments={"command": "\udce9"}),
        event(2, "action", usage=Usage(prompt_tokens=1, estimated=True)),
        event(3, "observation", changes=(change,), timed_out=True),
    )
    traces = {
        "empty": Trace(id="empty", format="takeover", events=()),
        "unpaired": Trace(id="unpaired", format="takeover", events=events, workspace="/\udce9", model="m"),
        "hostile": Trace(id="../x", format="atif", events=events[:2], agent="a\udc00", task="\x00\x1b[2J"),
    }
    source = write(tmp_path / "in", {name: trace.model_dump(mode="json") for name, trace in traces.items()})
    assert harbor.validate(export_files(source, tmp_path / "out")) == {}
