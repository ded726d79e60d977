"""The options of the main command: name, type, bounds, default and help of each."""

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
    """All options, including those that the configuration stores differently or not at all."""

    view: str = "structured"
    model: str = "builtin:oracle"
    models: Path | None = None
    predecessor: list[str] | None = None
    successor: list[str] | None = None
    agent_program: list[str] | None = None
    tasks: str = "bundled"
    task_ids: str | None = None
    points: str = "all"
    quota: list[str] | None = None
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
    check_tasks: bool | None = None


OPTIONS: dict[str, OptionInfo] = {
    "view": Option(
        help="Views to compare, separated by commas, or 'all': repository, trace, summary, structured, payload, transcript, cited. "
        "The repository baseline always runs. With continuation, which all does not include, the predecessor's own agent resumes "
        "its conversation, where it is also a successor."
    ),
    "model": Option(
        help="Model of predecessor and successor: openai:NAME, openai:NAME@URL, replay:FILE, builtin:oracle, or an entry "
        "of --models. AGENT:MODEL runs an external agent with it: codex, claude-code, mini, qwen-code or opencode; "
        "AGENT:native:NAME passes its requests on to the vendor's own endpoint."
    ),
    "models": Option(
        help="Models file (YAML), one entry per model, whose name can stand wherever a model is named: model, base_url, "
        "api_key_env, temperature, extra_body, max_output_tokens, window, model_timeout_s, read_timeout_s, notes_timeout_s, and "
        "price in US dollars per million tokens. "
        "See examples/models.yaml.",
        show_default=False,
    ),
    "predecessor": Option(
        help="Model that starts the tasks (repeatable). replay:FILE or replay:DIR plays recorded runs, each on the task that "
        "its id names; a file without an id, on the only selected task.",
        show_default="--model",
    ),
    "successor": Option(
        help="Model that takes over (repeatable). A replay of the predecessor's own file resumes at "
        "the handoff point; replay:FILE@N starts at action N, replay:FILE#K replays run K of the file.",
        show_default="--model",
    ),
    "agent_program": Option(
        help="Command of an external agent, such as codex=/opt/codex/bin/codex (repeatable).",
        show_default="the one on PATH",
    ),
    "notes_model": Option(
        help="Model that writes the notes: those that the views show, once per point. "
        "--max-reply-tokens does not apply.",
        show_default="the predecessor's model if it is an LLM, else the first successor's",
    ),
    "tasks": Option(
        help="'bundled', the directory of a task, a .parquet, .jsonl or .json file, or a dataset on the Hugging Face Hub."
    ),
    "task_ids": Option(help="Task ids, separated by commas, or @FILE with one id per line."),
    "limit": Option(help="Maximum number of tasks."),
    "prompt": Option(
        help="Task prompt: short, or paper, which prescribes eight phases of work as OpenHands' prompt for SWE-bench does."
    ),
    "points": Option(
        help="Handoff points, separated by commas: first_source_edit, first_validation, first_post_failure_edit."
    ),
    "sandbox": Option(
        help="docker, host (bubblewrap), process (no isolation), or auto: docker for tasks with an image, "
        "else host if available, else process."
    ),
    "max_points": Option(
        help="Maximum number of handoff points per predecessor, taken from the kinds in turn.",
    ),
    "quota": Option(
        help="Number of handoff points in one state per predecessor (repeatable), such as needs_completion=30 or "
        "already_solved=10:first_source_edit,first_validation. Points are chosen once all predecessors and labels are "
        "complete. Not with --max-points.",
        show_default="all points",
    ),
    "repeats": Option(help="Takeovers per point and view."),
    "study": Option(
        help="A study of the paper: main (75 tasks, all points), repeats (40 points of 75 tasks, 3 repeats) or "
        "predecessors (40 tasks, 60 points for each of your predecessors). It sets --tasks, --task-ids, --view, --repeats, "
        "--max-points, --quota, --prompt and --grading-network unless you set them. A --limit above its number of tasks "
        "adds the next tasks of the same order. agents is not a study of the paper: each agent that --predecessor and --successor "
        "name (default: the installed external agents and the built-in one, with --model) takes over from each; the baseline is "
        "continuation. It sets only --view."
    ),
    "shard": Option(help="Part of the tasks, such as 2/8 or 1-3/8. takeover-report combines the parts."),
    "records_of": Option(
        "--from",
        help="Directory of an earlier run whose predecessors, records, labels and notes are reused.",
    ),
    "stages": Option(
        help="Stages to run, separated by commas: predecessors, labels, notes, takeovers. Run the rest later with "
        "--resume."
    ),
    "workers": Option(help="Number of parallel processes."),
    "executor": Option(help="local, or ray: the nodes of a Ray cluster (see docs/cluster.md)."),
    "address": Option(
        envvar="RAY_ADDRESS",
        help="HOST:PORT of the cluster's head node.",
        show_default="the cluster of this host",
    ),
    "artifact_store": Option(
        help="URL of the artifact store in which cluster nodes exchange records and traces, readable by fsspec.",
        show_default="artifacts in --out, if the nodes share its file system",
    ),
    "node_dir": Option(
        help="Directory on each node for its own files.",
        show_default="the node's directory for temporary files",
    ),
    "base_url": Option(
        envvar="OPENAI_BASE_URL",
        help="OpenAI-compatible server of the models that name no other, with the key in OPENAI_API_KEY.",
    ),
    "protocol": Option(help="Action format: text, or native for the provider's tool calls."),
    "max_steps": Option(help="Maximum number of actions per agent."),
    "max_tokens": Option(help="Maximum number of prompt and completion tokens per agent."),
    "max_reply_tokens": Option(
        help="Maximum number of tokens per reply, unless the model's entry has a max_output_tokens.",
        show_default="the server's limit",
    ),
    "model_timeout_s": Option(
        min=0.1,
        help="Maximum number of seconds per model call, retries included, unless the model's entry has a model_timeout_s.",
    ),
    "read_timeout_s": Option(
        min=0.1,
        help="Maximum number of seconds without anything from the server, unless the model's entry has a read_timeout_s.",
    ),
    "notes_timeout_s": Option(
        min=0.1,
        help="Maximum number of seconds per note, unless the model's entry has a notes_timeout_s.",
    ),
    "max_seconds": Option(min=1, help="Maximum number of seconds per agent."),
    "window_tokens": Option(
        help="Context window in tokens, unless the model's entry has a window; bounds the views payload and transcript.",
        show_default="the model's known window, else 128000",
    ),
    "condense": Option(
        help="When a conversation reaches 80 % of the context window, replace its oldest observations by a short marker."
    ),
    "command_timeout_s": Option(min=0.1, help="Maximum number of seconds per command."),
    "allow_unisolated": Option(
        help="Let any model run commands in the process sandbox, with your user, files and network."
    ),
    "grading_network": Option(
        "--grading-network/--no-grading-network",
        help="Give the official tests in Docker network access, as the swebench harness does. Agents in docker and host "
        "have no network.",
    ),
    "journal": Option(
        envvar="TAKEOVER_JOURNAL",
        help="Database URL for the rows, such as postgresql://….",
        show_default="journal.sqlite in --out",
    ),
    "out": Option(help="Directory for results.", show_default="runs/DATE-TIME"),
    "resume": Option(
        help="Resume the run in --out: completed jobs stay, interrupted jobs continue, and "
        "jobs with infrastructure failures are retried."
    ),
    "report": Option(help="Write tables, plots and report.html; takeover-report can write them later."),
    "dry_run": Option(
        help="Print the plan with estimated tokens, cost and time, then exit; with --resume, for the remaining jobs."
    ),
    "list_tasks": Option(help="Print the selected task ids, one per line, then exit."),
    "check_tasks": Option(
        "--check-tasks/--no-check-tasks",
        help="Before the run, grade the gold patch of each task, which must resolve it, and the base commit, which must "
        "not. Each task is checked once per content.",
        show_default="on for tasks in files and directories, except those of a study of the paper",
    ),
}
"""The options' help, in the order of `--help`. `min` only if the command line is stricter than the option's type."""


def add_options(command: _Command) -> _Command:
    """The command with a signature that typer parses into `CommandOptions`."""
    context = inspect.signature(command, eval_str=True).parameters["context"]
    command.__signature__ = inspect.Signature([context, *_PARAMETERS])  # type: ignore[attr-defined]
    return command


def _make_parameter(name: str, hint: Any) -> inspect.Parameter:
    """Complete the option's metadata from its type."""
    kind, *bounds = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    option = OPTIONS[name]
    for bound in bounds:
        if option.min is None:
            option.min = bound.gt + 1 if hasattr(bound, "gt") else bound.ge
    if kind is bool and not getattr(CommandOptions, name):
        option.param_decls = (
            f"--{name.replace('_', '-')}",
        )  # only options that default to on have a --no- form
    if get_origin(kind) is Literal:
        kind = str  # `evals.run.preparation` reports other values in one line
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

  takeover --view structured

  takeover --view all --model openai:gpt-5 --tasks SWE-bench/SWE-bench_Verified --limit 5

  takeover --view trace --tasks verified.parquet --task-ids sympy__sympy-23534
  --predecessor replay:sympy__sympy-23534.traj.json --successor openai:qwen
  --base-url http://127.0.0.1:8091/v1

  takeover --models examples/models.yaml --model local-coder --notes-model thinker --view structured

  takeover --view trace --predecessor openai:a@http://127.0.0.1:8091/v1 --successor openai:b

  takeover --view transcript,structured --predecessor codex:openai:a --successor claude-code:openai:a

  takeover --study main --tasks verified.parquet --models models.yaml --predecessor a --successor a
  --successor b --dry-run

  takeover --study main --shard 2/8 --model openai:a --out runs/shard2

  takeover --study agents --model openai:a --task-ids ledger__ledger-12

  takeover --resume --out runs/20260518-120000

{EXIT_CODES}
"""
