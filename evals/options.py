"""The options of the main command: what a person can ask for, and how each is explained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from evals.conduct import EXIT_CODES

View = Annotated[
    str,
    Option(
        help="Views to compare, separated by commas, or 'all': repository, trace, summary, structured, payload, transcript, cited. "
        "The repository baseline always runs too."
    ),
]
Model = Annotated[
    str,
    Option(help="Model of predecessor and successor: openai:NAME, replay:FILE or builtin:oracle."),
]
Predecessor = Annotated[
    list[str] | None,
    Option(help="Model that begins the tasks; give it again for one more.", show_default="--model"),
]
Successor = Annotated[
    list[str] | None,
    Option(
        help="Model that takes over; give it again for one more. A replay of the predecessor's own file goes on where "
        "the point lies; replay:FILE@N begins at action N, replay:FILE#K plays the file's K-th run.",
        show_default="--model",
    ),
]
NotesModel = Annotated[
    str | None,
    Option(
        help="Model that writes the notes: of each point a summary and a structured note, once, for all views that show one; "
        "--max-reply-tokens is not for it.",
        show_default="the predecessor's if it is an LLM, else the first successor's",
    ),
]
Tasks = Annotated[
    str,
    Option(
        help="'bundled', a task repo's directory, a .parquet, .jsonl or .json file, "
        "or a dataset's name on the hub."
    ),
]
TaskIds = Annotated[
    str | None,
    Option(help="Only these tasks, separated by commas, or @FILE with one a line.", show_default=False),
]
Limit = Annotated[int | None, Option(min=1, help="At most so many tasks.", show_default=False)]
Points = Annotated[
    str,
    Option(
        help="Handoff points, separated by commas: first_source_edit, first_validation, "
        "first_post_failure_edit."
    ),
]
StudyName = Annotated[
    str | None,
    Option(
        "--study",
        help="One of the protocol's studies: main (75 tasks, all points), repeats (40 points, 3 times) or predecessors "
        "(40 tasks by the predecessors you name, 60 points). It decides --tasks, --task-ids, --view, --repeats and "
        "--max-points where you do not.",
        show_default=False,
    ),
]
MaxPoints = Annotated[
    int | None,
    Option(min=1, help="At most so many handoff points, of each kind in turn.", show_default=False),
]
ShardName = Annotated[
    str | None,
    Option(
        "--shard",
        help="Only a part of the tasks, as 2/8 or 1-3/8; evals.report takes the parts together.",
        show_default=False,
    ),
]
RecordsOf = Annotated[
    Path | None,
    Option(
        "--from",
        help="Take over the predecessors, records, labels and notes of an earlier run, so that none is paid for twice.",
        show_default=False,
    ),
]
Stages = Annotated[
    str,
    Option(
        help="What to do this time, separated by commas: predecessors, labels, notes, takeovers. What is left is done by "
        "--resume."
    ),
]
JournalUrl = Annotated[
    str | None,
    Option(
        "--journal",
        envvar="TAKEOVER_JOURNAL",
        help="The database of rows, such as postgresql://….",
        show_default="journal.sqlite in --out",
    ),
]
Report = Annotated[
    bool,
    Option(
        "--report/--no-report", help="Write tables, plots and report.html; evals.report writes them later."
    ),
]
DryRun = Annotated[
    bool,
    Option(
        "--dry-run",
        help="Print the plan and an estimate of tokens and time, and do nothing; with --resume, of what is left.",
    ),
]
ListTasks = Annotated[
    bool, Option("--list-tasks", help="Print the chosen tasks, one a line, and do nothing.")
]
SandboxName = Annotated[
    str,
    Option(
        "--sandbox",
        help="docker, host (bubblewrap), process (no isolation), or auto: docker for tasks that are images, "
        "else host where it works, else process.",
    ),
]
Repeats = Annotated[int, Option(min=1, help="Takeovers of each point under each view.")]
Workers = Annotated[int, Option(min=1, help="Processes that work side by side.")]
ExecutorName = Annotated[
    str, Option("--executor", help="local, or ray: the nodes of a Ray cluster; see docs/cluster.md.")
]
Address = Annotated[
    str | None,
    Option(
        envvar="RAY_ADDRESS",
        help="HOST:PORT of the cluster's head.",
        show_default="the cluster that this host belongs to",
    ),
]
DepotUrl = Annotated[
    str | None,
    Option(
        "--depot",
        help="Where the nodes of a cluster leave records and traces for each other: a URL that fsspec knows.",
        show_default="depot in --out, for nodes that share its file system",
    ),
]
NodeDir = Annotated[
    str | None,
    Option(
        help="Where each node has a directory of its own.",
        show_default="its directory for temporary files",
    ),
]
BaseUrl = Annotated[
    str | None,
    Option(
        envvar="OPENAI_BASE_URL",
        help="An OpenAI-compatible server for the openai: models.",
        show_default=False,
    ),
]
ActionProtocol = Annotated[
    str, Option("--protocol", help="How models act: text, or native for the provider's own tool calls.")
]
MaxSteps = Annotated[int, Option(min=1, help="Actions an agent may take.")]
MaxTokens = Annotated[
    int | None, Option(min=1, help="Prompt and completion tokens an agent may spend.", show_default=False)
]
MaxReplyTokens = Annotated[
    int | None,
    Option(min=1, help="Tokens of one reply.", show_default="the server's own limit"),
]
MaxSeconds = Annotated[float, Option(min=1, help="Seconds an agent may take.")]
WindowTokens = Annotated[
    int | None,
    Option(
        min=1000,
        help="The successor's context window, by which payload and transcript are cut.",
        show_default="what is known of the model, else 128000",
    ),
]
CommandTimeout = Annotated[float, Option("--command-timeout-s", min=0.1, help="Seconds a command may take.")]
AllowUnisolated = Annotated[
    bool,
    Option(
        "--allow-unisolated",
        help="Let any model run commands in the process sandbox: as you, with your files and your network.",
    ),
]
GradingNetwork = Annotated[
    bool,
    Option(
        "--grading-network",
        help="Let the official tests in Docker reach the network, as swebench's own harness does.",
    ),
]
Out = Annotated[Path | None, Option(help="Directory for the results.", show_default="runs/DATE-TIME")]
Resume = Annotated[
    bool,
    Option(
        "--resume",
        help="Go on with the run in --out: what is done stays, what was cut short goes on where it stood, "
        "what failed for its infrastructure is tried again.",
    ),
]

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
