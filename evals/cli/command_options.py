"""The options of the main command: name, type, bounds, default and help of each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from typing import Annotated, Literal, TypeVar, get_args, get_origin, get_type_hints

from typer import Option
from typer.models import OptionInfo

from langgraph_takeover.evals.cli.runner import EXIT_CODES
from langgraph_takeover.evals.run.settings.run_options import CommandOptions

_Command = TypeVar("_Command", bound=Callable[..., None])


PANELS: dict[str, dict[str, OptionInfo]] = {
    "What to run": {
        "view": Option(metavar="VIEWS", help="Views to compare, or 'all'."),
        "tasks": Option(metavar="SOURCE", help="Task directory, task file or dataset on the Hub."),
        "task_ids": Option(metavar="IDS", help="Task ids, or @FILE with one per line."),
        "limit": Option(help="Maximum number of tasks."),
        "shard": Option(metavar="K/N", help="Part of the tasks, such as 2/8 or 1-3/8."),
        "study": Option(metavar="NAME", help="Study: main, repeats, predecessors or agents."),
        "prompt": Option(metavar="NAME", help="Task prompt: short or paper."),
        "points": Option(metavar="KINDS", help="Kinds of handoff points."),
        "max_points": Option(help="Maximum number of points per predecessor."),
        "quota": Option(
            metavar="STATE=N", help="Number of points in one state (repeatable).", show_default="all points"
        ),
        "repeats": Option(help="Takeovers per point and view."),
        "attempts": Option(help="Attempts of each takeover; see --choose."),
        "choose": Option(metavar="RULE", help="Attempt to keep: tests-of-the-predecessor."),
        "records_of": Option("--from", metavar="DIR", help="Reuse the predecessors of an earlier run."),
        "stages": Option(metavar="STAGES", help="Stages to run now."),
        "check_tasks": Option(
            "--check-tasks/--no-check-tasks",
            help="Grade gold patch and base commit first.",
            show_default="on for tasks in files",
        ),
        "dry_run": Option("--dry-run", help="Print the plan and its cost, then exit."),
        "list_tasks": Option("--list-tasks", help="Print the selected task ids, then exit."),
    },
    "Models": {
        "model": Option(metavar="MODEL", help="Model of predecessor and successor."),
        "models": Option(metavar="FILE", help="Models file (YAML).", show_default=False),
        "predecessor": Option(
            metavar="MODEL", help="Model that starts the tasks (repeatable).", show_default="--model"
        ),
        "successor": Option(
            metavar="MODEL", help="Model that takes over (repeatable).", show_default="--model"
        ),
        "notes_model": Option(
            metavar="MODEL", help="Model that writes the notes.", show_default="the predecessor's model"
        ),
        "agent_program": Option(
            metavar="AGENT=FILE", help="Command of an external agent.", show_default="on PATH"
        ),
        "base_url": Option(metavar="URL", envvar="OPENAI_BASE_URL", help="OpenAI-compatible server."),
        "protocol": Option(metavar="NAME", help="Action format: text or native."),
    },
    "Sandbox": {
        "sandbox": Option(metavar="NAME", help="Back end: docker, host, process or auto."),
        "allow_unisolated": Option("--allow-unisolated", help="Let --sandbox process run commands as you."),
        "grading_network": Option(
            "--grading-network/--no-grading-network", help="Network for the official tests in Docker."
        ),
    },
    "Limits": {
        "max_steps": Option(help="Maximum number of actions per agent."),
        "max_tokens": Option(help="Maximum number of tokens per agent."),
        "max_seconds": Option(help="Maximum number of seconds per agent."),
        "max_reply_tokens": Option(help="Maximum per reply.", show_default="the server's limit"),
        "window_tokens": Option(help="Context window in tokens.", show_default="the model's, else 128000"),
        "condense": Option("--condense", help="Shorten old observations when the window fills."),
        "command_timeout_s": Option(help="Time limit of one command."),
        "model_timeout_s": Option(help="Time limit of one model call, with retries."),
        "read_timeout_s": Option(help="Time limit without data from the server."),
        "notes_timeout_s": Option(help="Time limit of one note."),
    },
    "Output": {
        "out": Option(metavar="DIR", help="Directory for results.", show_default="runs/DATE-TIME"),
        "resume": Option("--resume", help="Continue the run in --out, and retry failures."),
        "report": Option(help="Write tables, plots and report.html."),
        "journal": Option(
            metavar="URL", envvar="TAKEOVER_JOURNAL", help="Database of the rows.", show_default=False
        ),
    },
    "Cluster": {
        "workers": Option(help="Number of parallel processes."),
        "executor": Option(metavar="NAME", help="local, or ray for a Ray cluster."),
        "address": Option(
            metavar="HOST:PORT", envvar="RAY_ADDRESS", help="Head node.", show_default="this host's"
        ),
        "artifact_store": Option(metavar="URL", help="Shared artifact store.", show_default="in --out"),
        "node_dir": Option(metavar="DIR", help="Files of a node.", show_default="temporary files"),
    },
}
"""The options by panel of `--help`, one short line each; docs/options.md has the details."""
OPTIONS = {name: option for options in PANELS.values() for name, option in options.items()}
_LEAST_SECONDS = 0.1


def add_options(command: _Command) -> _Command:
    """The command with a signature that typer parses into `CommandOptions`."""
    context = inspect.signature(command, eval_str=True).parameters["context"]
    command.__signature__ = inspect.Signature([context, *_PARAMETERS])  # type: ignore[attr-defined]
    return command


def _make_parameter(name: str, panel: str) -> inspect.Parameter:
    """Complete the option's metadata from its type."""
    hint = _HINTS[name]
    kind, *bounds = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    option = copy(OPTIONS[name])
    option.rich_help_panel = panel
    for bound in bounds:
        more = _LEAST_SECONDS if kind is float else 1
        option.min = bound.gt + more if hasattr(bound, "gt") else bound.ge
    if get_origin(kind) is Literal:
        kind = str  # `evals.run.preparation` reports other values in one line
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=getattr(CommandOptions, name),
        annotation=Annotated[kind, option],
    )


_HINTS = get_type_hints(CommandOptions, include_extras=True)
_PARAMETERS = [_make_parameter(name, panel) for panel, options in PANELS.items() for name in options]


EPILOG = f"""
Every option in detail: docs/options.md

Examples:
  takeover --view structured
  takeover --view all --model openai:gpt-5 --tasks SWE-bench/SWE-bench_Verified
      --limit 5
  takeover --view trace --tasks verified.parquet --task-ids sympy__sympy-23534
      --predecessor replay:sympy__sympy-23534.traj.json --successor openai:qwen
      --base-url http://127.0.0.1:8091/v1
  takeover --models examples/models.yaml --model local-coder --notes-model
      thinker --view structured
  takeover --view trace --predecessor openai:a@http://127.0.0.1:8091/v1
      --successor openai:b
  takeover --view transcript,structured --predecessor codex:openai:a --successor
      claude-code:openai:a
  takeover --study main --tasks verified.parquet --models models.yaml
      --predecessor a --successor a --successor b --dry-run
  takeover --view structured --model openai:a --attempts 3
      --choose tests-of-the-predecessor
  takeover --study main --shard 2/8 --model openai:a --out runs/shard2
  takeover --study agents --model openai:a --task-ids ledger__ledger-12
  takeover --resume --out runs/20260518-120000

{EXIT_CODES}
"""
