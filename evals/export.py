"""Export recorded runs of any agent as ATIF documents; a takeover links to the run that it continues."""

from __future__ import annotations

import errno
import itertools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from langgraph_takeover.base.untrusted_input import describe_error
from langgraph_takeover.evals.cli.runner import USAGE, SingleUseCommand
from langgraph_takeover.evals.cli.trace_files import (
    SessionAgentOption,
    SessionOption,
    UnknownTraceError,
    WorkspaceOption,
    read_traces,
    select_trace_files,
)
from langgraph_takeover.sandbox.cli.program import (
    PlainApp,
    degrade_output,
    program_name,
    report_full_disk,
    run_app,
)

if TYPE_CHECKING:
    from langgraph_takeover.handoff.trace.events import Trace

_EPILOG = """
Examples:
  takeover-export runs/20260101-120000/traces --out atif
  takeover-export run.traj.json --out atif
  takeover-export --session latest --out atif
"""

app = PlainApp()


@app.command(epilog=_EPILOG, cls=SingleUseCommand)
def command(
    out: Annotated[Path, typer.Option(help="Directory for the documents, one per run.")],
    traces: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files, directories or globs, as for takeover-detect. Optional with --session.",
            metavar="TRACE…",
            show_default=False,
        ),
    ] = None,
    trace_format: Annotated[
        str, typer.Option("--format", help="Format of the files; 'auto' detects it.")
    ] = "auto",
    session: SessionOption = None,
    agent: SessionAgentOption = None,
    workspace: WorkspaceOption = "",
) -> None:
    """Export recorded runs as ATIF, the Agent Trajectory Interchange Format.

    Runs of one call are linked: a predecessor's document names the documents of its takeovers. The name of a document
    consists of its run and the recorded format. An existing document of that name is replaced.
    """

    try:
        if not traces and session is None:
            raise UnknownTraceError(
                "TRACE: pass files, directories or globs of recorded runs, or --session ID"
            )
        with select_trace_files(traces or (), session, agent) as files:
            found = list(read_traces(files, trace_format, workspace))
    except UnknownTraceError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    if not found:
        print("error: no trace could be read, so no document was written", file=sys.stderr)
        raise typer.Exit(USAGE)
    try:
        out.mkdir(parents=True, exist_ok=True)
        written = write_documents(out, [trace for _, trace in found])
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"error: --out: {error.filename or out}: {describe_error(error)}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    print(f"{written} document(s) in {out}")


def write_documents(out: Path, traces: list[Trace]) -> int:
    """Write each trace as an ATIF document, linked to its continuations. Return their number."""
    from langgraph_takeover.handoff.records.record import write_durably
    from langgraph_takeover.handoff.text.redaction import redact
    from langgraph_takeover.handoff.trace.atif_documents import SuccessorDocument, build_document

    names: dict[int, str] = {}
    for number, trace in enumerate(traces):
        plain = re.sub(r"[^\w.+-]+", "_", trace.id)[:150].lstrip(".") or "trace"
        plain += "" if trace.format == "takeover" else f".{trace.format}"
        taken = set(names.values())
        tries = itertools.chain([f"{plain}.json"], (f"{plain}-{n}.json" for n in itertools.count(2)))
        names[number] = next(name for name in tries if name not in taken)
    for number, trace in enumerate(traces):
        successors = [
            SuccessorDocument(names[other], one)
            for other, one in enumerate(traces)
            if one is not trace and one.continues is not None and one.continues.trace == trace.id
        ]
        document = redact(build_document(trace, successors, _find_session(trace, traces)))
        write_durably(out / names[number], json.dumps(document, ensure_ascii=True))
    return len(traces)


def _find_session(trace: Trace, traces: Sequence[Trace]) -> str:
    """The id of the first trace in the chain of takeovers that ends with this one."""
    predecessors = {one.id: one.continues.trace for one in traces if one.continues is not None}
    session, seen = trace.id, {trace.id}
    while (before := predecessors.get(session)) is not None and before not in seen:
        session = before
        seen.add(before)
    return session


def main() -> None:
    """Run the command line."""
    degrade_output()
    with report_full_disk("--out"):
        run_app(app, program_name("takeover-export", "evals.export"))


if __name__ == "__main__":
    main()
