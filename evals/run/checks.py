"""Checks before a run, and the reuse of an earlier run's predecessors, labels and notes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TypeVar

from langgraph_takeover.base.untrusted_input import describe_error
from langgraph_takeover.evals import models
from langgraph_takeover.evals.run.journal import (
    JOURNAL_FILE,
    Journal,
    Journals,
    get_journals,
    open_journal,
)
from langgraph_takeover.evals.run.measures.replies import (
    NOTE_BY_VIEW,
    find_changed_note,
    has_note,
    list_note_digests,
)
from langgraph_takeover.evals.run.rows import NotesRow, Row
from langgraph_takeover.evals.run.settings.config import (
    CONFIG_FILE,
    RunConfig,
    RunPaths,
    RunUsageError,
    check_windows,
    find_model_difference,
    load_config,
    shorten_model_name,
)
from langgraph_takeover.evals.run.settings.inputs import RunInputs, find_changed_input
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.evals.tasks.grading import check_gradable
from langgraph_takeover.handoff.names import CONTINUATION
from langgraph_takeover.handoff.records.record import HandoffRecord, RecordError
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.sandbox.interface import SandboxUnavailableError
from langgraph_takeover.sandbox.snapshots.transfer import copy_to_store

_SHARED_SETTINGS = ("prompt", "sandbox", "protocol", "points", "command_timeout_s")
_RowT = TypeVar("_RowT", bound=Row)
_CURE = "restore it from a copy, or leave its task out by --task-ids"


def check_source(config: RunConfig) -> None:
    """Raises RunUsageError if the earlier run's predecessors differ from those that this run would have."""
    source = Path(str(config.records_of))
    try:
        holds_run = (source / CONFIG_FILE).is_file() and os.path.lexists(source / JOURNAL_FILE)
    except OSError as error:
        raise RunUsageError(f"--from: {str(source)[:200]}: {describe_error(error)}") from error
    if not holds_run:
        raise RunUsageError(
            f"--from: {source} is not the directory of a takeover run (pass the --out of one)"
        )
    before = load_config(source)
    tasks = ("tasks",) if _has_other_tasks(before, config) else ()
    for name in (*tasks, *_SHARED_SETTINGS):
        if getattr(before, name) != getattr(config, name):
            raise RunUsageError(
                f"--from: {source} ran with --{name.replace('_', '-')} {_format_setting(before, name)}, this run has "
                f"{_format_setting(config, name)} (pass the same value)"
            )
    known = [model for model in config.predecessors if model in before.predecessors]
    if not known:
        raise RunUsageError(
            f"--from: {source} has no predecessor {config.predecessors[0]} (it has {', '.join(before.predecessors)})"
        )
    for name in known:
        if difference := find_model_difference(before, config, name):
            raise RunUsageError(
                f"--from: {source} ran with another entry {difference} (use the same in --models)"
            )
    check_inputs(before, config.inputs, "--from", source)


def check_inputs(before: RunConfig, now: RunInputs, option: str, source: Path) -> None:
    """Raises RunUsageError if the earlier run in `source` read other tasks, recordings or prompts than `now`."""
    if changed := find_changed_input(before.inputs, now):
        raise RunUsageError(
            f"{option}: {changed} since {source} ran (restore it, or run the predecessors again in a new run)"
        )


def _has_other_tasks(before: RunConfig, config: RunConfig) -> bool:
    """Whether two runs have no task in common; digests recognize those of a moved source."""
    return not before.inputs.tasks.keys() & config.inputs.tasks.keys()


def _format_setting(config: RunConfig, name: str) -> str:
    value = getattr(config, name)
    return ",".join(value) if isinstance(value, tuple) else str(value)


def copy_source_run(config: RunConfig, tasks: dict[str, Task], paths: RunPaths, rows: Journals) -> int:
    """Copy the earlier run's missing predecessors, labels and notes of these tasks. Return the number of predecessors."""
    if config.records_of is None:
        return 0
    source = RunPaths(Path(config.records_of))
    taken = 0
    before = load_config(source.out)
    run = before.run_id
    with open_journal(source.out, run=run) as database:
        theirs = get_journals(database, run)
        check_notes(source, theirs.notes.rows(), "--from")
        labels = {row.record_id: row for row in theirs.labels.rows()}
        notes = {row.record_id: row for row in theirs.notes.rows()}
        done = rows.predecessors.keys()
        for row in theirs.predecessors.rows():
            wanted = row.task_id in tasks and row.predecessor in config.predecessors
            if row.is_failure or not wanted or row.key in done:
                continue
            trace = source.traces / f"{row.trace}.json"
            if not trace.is_file():
                raise RunUsageError(f"--from: trace not found: {trace} ({_CURE})")
            tasks[row.task_id].check_out(paths.repositories, copy_from=source.repositories)
            for record_id in row.records or ():
                note = notes.get(record_id)
                writer = config.choose_writer(row.predecessor)
                is_same = note is not None and note.model == writer
                noted = is_same and not find_model_difference(before, config, writer)
                noted = _copy_record(source, paths, record_id, config.views if noted else ()) and noted
                _copy_row(rows.labels, labels.get(record_id))
                _copy_row(rows.notes, note if noted else None)
            paths.traces.mkdir(exist_ok=True)
            shutil.copy2(trace, paths.traces)
            rows.predecessors.append(row)
            taken += 1
    return taken


def check_notes(paths: RunPaths, rows: Iterable[NotesRow], option: str) -> None:
    """Raises RunUsageError if a run's record has other notes than its row, so that takeovers would show different ones."""
    for row in rows:
        if not list_note_digests(row):
            continue
        try:
            notes = paths.records.load_notes(row.record_id)
        except RecordError:
            continue  # its jobs report it
        if notes is not None and (note := find_changed_note(row, notes)):
            raise RunUsageError(
                f"{option}: the {note} note of record {row.record_id} in {paths.out} changed since it was written "
                "(restore its notes.json, or start a new run)"
            )


def _copy_record(
    source: RunPaths, paths: RunPaths, record_id: str, views_with_notes: Collection[str]
) -> bool:
    """Copy a record, with its notes if it has all that these views show. Return whether it has them."""
    try:
        record = source.records.load(record_id)
    except RecordError as error:
        raise RunUsageError(f"--from: {error} ({_CURE})") from error
    if record_id not in paths.records.list_ids():

        def make(directory: Path) -> HandoffRecord:
            copy_to_store(record.required_snapshot, source.records.directory(record_id), directory)
            return record

        paths.records.create(record_id, make)
    noted = all(has_note(record, view) for view in views_with_notes if view in NOTE_BY_VIEW)
    if noted and views_with_notes and record.notes is not None:
        paths.records.add_notes(record_id, record.notes)
    return noted


def _copy_row(journal: Journal[_RowT], row: _RowT | None) -> None:
    if row is not None and not row.is_failure and row.key not in journal:
        journal.append(row)


def check_run(config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
    """Detect before a run what would make it fail.

    Raises RunUsageError, ModelNameError, TaskSourceError or SandboxUnavailableError.
    """
    from langgraph_takeover.handoff.views import VIEWS_WITH_NOTES

    if config.records_of is not None:
        check_source(config)
    if redact(config.base_url) != config.base_url:
        raise RunUsageError(
            "--base-url: contains a secret, which the run would store (set OPENAI_API_KEY instead)"
        )
    _check_short_names(config)
    writers = tuple(config.choose_writer(name) for name in config.predecessors)
    for name in dict.fromkeys((*config.predecessors, *config.successors, *writers)):
        if name in config.recordings:
            for recording in config.recordings[name].values():
                models.check_recording(recording)
        else:
            models.check_model(name, tasks, config.base_url, config.models)
    check_windows(config)
    if any(models.parse_model_name(name).kind == "replay" for name in writers) and len(config.views) > 1:
        wanting = [view for view in config.views if view in VIEWS_WITH_NOTES]
        if wanting:
            raise RunUsageError(
                f"--notes-model: a replay cannot write notes, but {wanting[0]} needs them (use an LLM)"
            )
    for task in tasks:
        task.build_spec(config.sandbox, config.run_id, out)
    _check_sandbox(config, tasks)
    _check_agents(config)
    _check_continuation(config)
    check_gradable(tasks)


def _check_short_names(config: RunConfig) -> None:
    """Raises RunUsageError if two models would give their threads, records and traces the same names."""
    for role, names in (("predecessor", config.predecessors), ("successor", config.successors)):
        known: dict[str, str] = {}
        for name in names:
            other = known.setdefault(shorten_model_name(name), name)
            if other != name:
                raise RunUsageError(
                    f"--{role}: records of {other} and {name} would have one name, {shorten_model_name(name)!r} (define one of "
                    "the models in --models under another name)"
                )


def _check_agents(config: RunConfig) -> None:
    """Raises RunUsageError if the program of an external agent is missing, or the sandbox cannot mount it."""
    from langgraph_takeover.agents import AgentProgramError, external_agent

    agents = {models.split_agent(name)[0] for name in (*config.predecessors, *config.successors)} - {""}
    if agents and config.sandbox == "process":
        raise RunUsageError(
            f"--sandbox process cannot run {min(agents)}, whose program needs a mount (use host or docker)"
        )
    for name in sorted(agents):
        try:
            agent = external_agent(name, program=config.agent_programs.get(name))
        except AgentProgramError as error:
            raise RunUsageError(f"--agent-program {name}=FILE: {error}") from error
        if agent.program.warning:
            print(agent.program.warning, file=sys.stderr)


def _check_continuation(config: RunConfig) -> None:
    """Raises RunUsageError if no agent continues its own work, or its conversation is in another directory."""
    if CONTINUATION not in config.views:
        return
    own = [name for name in config.predecessors if name in config.successors]
    if not own:
        raise RunUsageError(
            f"--view {CONTINUATION}: no successor is a predecessor (pass the same model as both, or leave the view out)"
        )
    built_in = [name for name in own if not models.split_agent(name)[0]]
    if built_in and config.records_of is not None:
        raise RunUsageError(
            f"--view {CONTINUATION}: the conversation of {built_in[0]} is only in {config.records_of} (leave --from out)"
        )


def _check_image(task: Task, config: RunConfig) -> None:
    from langgraph_takeover.sandbox.docker_client import require_image

    image = task.build_spec(config.sandbox, config.run_id, Path()).image
    if image is None:
        return
    try:
        require_image(image)
    except SandboxUnavailableError as error:
        dockerfile = task.directory is not None and (task.directory / "Dockerfile").is_file()
        cure = f"docker build -t {image} {task.directory}" if dockerfile else f"docker pull {image}"
        raise RunUsageError(f"task {task.id}: its image is not on this Docker daemon ({cure})") from error


def _check_sandbox(config: RunConfig, tasks: tuple[Task, ...]) -> None:
    if config.sandbox == "process" and not config.allow_unisolated:
        strangers = [
            name for name in (*config.predecessors, *config.successors) if not models.is_builtin(name)
        ]
        if strangers:
            raise RunUsageError(
                f"--sandbox process would run the commands of {strangers[0]} as your user, with your files and "
                "network (use host or docker, or pass --allow-unisolated)"
            )
    if config.sandbox == "host":
        from langgraph_takeover.sandbox.backends.host import unavailable_reason

        reason = unavailable_reason()
        if reason is not None:
            raise RunUsageError(f"--sandbox host: {reason} (or use docker or process)")
    if config.sandbox == "docker":
        from langgraph_takeover.sandbox.docker_client import client

        client()
        if shutil.which("docker") is None:
            raise RunUsageError(
                "--sandbox docker: the docker command is not installed, but the swebench harness needs it"
            )
    if config.sandbox != "process":
        for task in tasks:
            _check_image(task, config)


def check_takeovers(config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
    """The same for a run whose records and notes exist already.

    Raises RunUsageError, ModelNameError or SandboxUnavailableError.
    """
    only = {"predecessors": config.successors, "notes_model": config.successors[0], "views": ()}
    check_run(config.model_copy(update=only), tasks, out)
