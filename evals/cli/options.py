"""The options of the main command: the name, type, bounds, default and help of each, written once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from annotated_types import Ge
from typer import Option
from typer.models import OptionInfo

from langgraph_takeover.evals.cli.runner import EXIT_CODES
from langgraph_takeover.evals.run.settings.options import RunOptions

_Command = TypeVar("_Command", bound=Callable[..., None])


class CommandOptions(RunOptions):
    """All options: also those that the configuration keeps in another form, or not at all."""

    view: str = "structured"
    model: str = "builtin:oracle"
    predecessor: list[str] | None = None
    successor: list[str] | None = None
    tasks: str = "bundled"
    task_ids: str | None = None
    points: str = "all"
    sandbox: str = "auto"
    records_of: Path | None = None
    stages: str = "all"
    workers: Annotated[int, Ge(1)] = 1
    executor: str = "local"
    address: str | None = None
    artifact_store: str | None = None
    node_dir: str | None = None
    journal: str | None = None
    out: Path | None = None
    resume: bool = False
    report: bool = True
    dry_run: bool = False
    list_tasks: bool = False


OPTIONS: dict[str, OptionInfo] = {
    "view": Option(
        help="Views to compare, separated by commas, or 'all': repository, trace, summary, structured, payload, transcript, cited. "
        "The repository baseline always runs too."
    ),
    "model": Option(help="Model of predecessor and successor: openai:NAME, replay:FILE or builtin:oracle."),
    "predecessor": Option(
        help="Model that begins the tasks; give it again for one more.", show_default="--model"
    ),
    "successor": Option(
        help="Model that takes over; give it again for one more. A replay of the predecessor's own file goes on where "
        "the point lies; replay:FILE@N begins at action N, replay:FILE#K plays the file's K-th run.",
        show_default="--model",
    ),
    "notes_model": Option(
        help="Model that writes the notes: of each point a summary and a structured note, once, for all views that show one; "
        "--max-reply-tokens is not for it.",
        show_default="the predecessor's if it is an LLM, else the first successor's",
    ),
    "tasks": Option(
        help="'bundled', a task repo's directory, a .parquet, .jsonl or .json file, or a dataset's name on the hub."
    ),
    "task_ids": Option(help="Only these tasks, separated by commas, or @FILE with one a line."),
    "limit": Option(help="Maximum number of tasks."),
    "points": Option(
        help="Handoff points, separated by commas: first_source_edit, first_validation, first_post_failure_edit."
    ),
    "sandbox": Option(
        help="docker, host (bubblewrap), process (no isolation), or auto: docker for tasks that are images, "
        "else host where it works, else process."
    ),
    "max_points": Option(help="Maximum number of handoff points, taken from each kind in turn."),
    "repeats": Option(help="Takeovers of each point under each view."),
    "study": Option(
        help="One of the protocol's studies: main (75 tasks, all points), repeats (40 points, 3 times) or predecessors "
        "(40 tasks by the predecessors you name, 60 points). It decides --tasks, --task-ids, --view, --repeats and "
        "--max-points where you do not."
    ),
    "shard": Option(help="Only a part of the tasks, as 2/8 or 1-3/8; evals.report takes the parts together."),
    "records_of": Option(
        "--from",
        help="Take over the predecessors, records, labels and notes of an earlier run, so that none is paid for twice.",
    ),
    "stages": Option(
        help="What to do this time, separated by commas: predecessors, labels, notes, takeovers. What is left is done by "
        "--resume."
    ),
    "workers": Option(help="Processes that work side by side."),
    "executor": Option(help="local, or ray: the nodes of a Ray cluster; see docs/cluster.md."),
    "address": Option(
        envvar="RAY_ADDRESS",
        help="HOST:PORT of the cluster's head.",
        show_default="the cluster that this host belongs to",
    ),
    "artifact_store": Option(
        help="Where the nodes of a cluster leave records and traces for each other: a URL that fsspec knows.",
        show_default="artifacts in --out, for nodes that share its file system",
    ),
    "node_dir": Option(
        help="Where each node has a directory of its own.", show_default="its directory for temporary files"
    ),
    "base_url": Option(envvar="OPENAI_BASE_URL", help="An OpenAI-compatible server for the openai: models."),
    "protocol": Option(help="How models act: text, or native for the provider's own tool calls."),
    "max_steps": Option(help="Actions an agent may take."),
    "max_tokens": Option(help="Prompt and completion tokens an agent may spend."),
    "max_reply_tokens": Option(help="Tokens of one reply.", show_default="the server's own limit"),
    "max_seconds": Option(min=1, help="Seconds an agent may take."),
    "window_tokens": Option(
        help="The successor's context window, by which payload and transcript are cut.",
        show_default="what is known of the model, else 128000",
    ),
    "command_timeout_s": Option(min=0.1, help="Seconds a command may take."),
    "allow_unisolated": Option(
        help="Let any model run commands in the process sandbox: as you, with your files and your network."
    ),
    "grading_network": Option(
        help="Let the official tests in Docker reach the network, as swebench's own harness does."
    ),
    "journal": Option(
        envvar="TAKEOVER_JOURNAL",
        help="The database of rows, such as postgresql://….",
        show_default="journal.sqlite in --out",
    ),
    "out": Option(help="Directory for the results.", show_default="runs/DATE-TIME"),
    "resume": Option(
        help="Go on with the run in --out: what is done stays, what was cut short goes on where it stood, "
        "what failed for its infrastructure is tried again."
    ),
    "report": Option(help="Write tables, plots and report.html; evals.report writes them later."),
    "dry_run": Option(
        help="Print the plan and an estimate of tokens and time, and do nothing; with --resume, of what is left."
    ),
    "list_tasks": Option(help="Print the chosen tasks, one a line, and do nothing."),
}
"""The options' help, in the order of `--help`; `min` only where the command line is stricter than the option's type."""


def add_options(command: _Command) -> _Command:
    """The command, with a signature from which typer makes all `CommandOptions`."""
    context = inspect.signature(command, eval_str=True).parameters["context"]
    command.__signature__ = inspect.Signature([context, *_PARAMETERS])  # type: ignore[attr-defined]
    return command


def _make_parameter(name: str, hint: Any) -> inspect.Parameter:
    """Completes the option from its type, too."""
    kind, *bounds = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    option = OPTIONS[name]
    for bound in bounds:
        if option.min is None:
            option.min = bound.gt + 1 if hasattr(bound, "gt") else bound.ge
    if kind is bool and not getattr(CommandOptions, name):
        option.param_decls = (f"--{name.replace('_', '-')}",)  # only what is on by default has a --no- form
    if get_origin(kind) is Literal:
        kind = str  # `evals.run.preparation` refuses other values, in one line
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=getattr(CommandOptions, name),
        annotation=Annotated[kind, option],
    )


_HINTS = get_type_hints(CommandOptions, include_extras=True)
_PARAMETERS = [_make_parameter(name, _HINTS[name]) for name in OPTIONS]


EPILOG = f"""
Examples:

  python -m evals.takeover --view structured

  python -m evals.takeover --view all --model openai:gpt-5 --tasks SWE-bench/SWE-bench_Verified --limit 5

  python -m evals.takeover --view trace --tasks verified.parquet --task-ids sympy__sympy-23534
  --predecessor replay:sympy__sympy-23534.traj.json --successor openai:qwen
  --base-url http://127.0.0.1:8091/v1

  python -m evals.takeover --study main --tasks verified.parquet --predecessor openai:a --successor openai:a
  --successor openai:b --dry-run

  python -m evals.takeover --study main --shard 2/8 --model openai:a --out runs/shard2

  python -m evals.takeover --resume --out runs/20260518-120000

{EXIT_CODES}
"""
