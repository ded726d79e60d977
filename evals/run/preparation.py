"""The settings and tasks of a run, from the command-line options; validates everything up front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

from pydantic import ValidationError

from langgraph_takeover import sandbox
from langgraph_takeover.base.untrusted_input import describe_error
from langgraph_takeover.evals import models
from langgraph_takeover.evals.run.checks import check_run
from langgraph_takeover.evals.run.settings.config import (
    CONFIG_FILE,
    AgentLimits,
    RunConfig,
    RunUsageError,
    TakeoverOptions,
    find_changed_option,
    keep_used_models,
    load_config,
    load_models_option,
    load_source_models,
    make_run_id,
    read_ids,
    read_points,
    read_shard,
    read_views,
    remove_password,
)
from langgraph_takeover.evals.run.settings.inputs import compute_inputs, find_input_difference
from langgraph_takeover.evals.run.settings.run_options import OPTION_FIELDS, RunOptions
from langgraph_takeover.evals.run.settings.study import (
    add_continuation,
    check_tiers,
    get_study,
    list_installed,
    read_quotas,
)
from langgraph_takeover.evals.tasks import Task, TaskSourceError, load_tasks, locate_source
from langgraph_takeover.handoff.names import AGENT_NAMES
from langgraph_takeover.nodes.context.agent_options import select_options
from langgraph_takeover.sandbox.interface import BackendName, SandboxUnavailableError


def usage_errors(*extra: type[Exception]) -> tuple[type[Exception], ...]:
    """Errors that the user can correct. Each says how."""
    from langgraph_takeover.evals.run.journal import JournalError, OutputInUseError

    return (
        RunUsageError,
        models.ModelNameError,
        models.ModelsFileError,
        TaskSourceError,
        JournalError,
        OutputInUseError,
        *host_errors(),
        *extra,
    )


def host_errors() -> tuple[type[Exception], ...]:
    """Errors of the host, once a run has started."""
    from langgraph_takeover.handoff.ledger import LedgerUnavailableError

    return (LedgerUnavailableError, SandboxUnavailableError)


def parse_options(values: Mapping[str, Any]) -> TakeoverOptions:
    """The options of the command line. Raises RunUsageError."""
    try:
        options = TakeoverOptions.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        hint = get_type_hints(TakeoverOptions).get(name)
        choices = [
            each for part in get_args(hint) for each in get_args(part) or (part,) if each is not type(None)
        ]
        known = f"unknown value {first['input']!r} (use {', '.join(map(str, choices))})"
        problem = known if first["type"] == "literal_error" else first["msg"]
        raise RunUsageError(f"--{name.replace('_', '-')}: {problem}") from error
    if options.attempts > 1 and options.choose is None:
        raise RunUsageError(
            "--attempts: no rule chooses the attempt to keep (add --choose tests-of-the-predecessor)"
        )
    if options.choose is not None and options.attempts == 1:
        raise RunUsageError("--choose: there is one attempt only (add --attempts 2 or more)")
    return options


def prepare_run(
    options: TakeoverOptions,
    explicit: set[str],
    out: Path,
    *,
    resume: bool,
    extra_check: Callable[[RunConfig, tuple[Task, ...], Path], None] = lambda config, tasks, out: None,
) -> tuple[RunConfig, tuple[Task, ...]]:
    """The settings, written to disk, and the tasks. `extra_check` runs before anything is written.

    Raises RunUsageError, ModelNameError, TaskSourceError, LedgerUnavailableError or SandboxUnavailableError.
    """
    config, tasks = resolve_run(options, explicit, out, resume=resume)
    # The command decides whether commands run as the user, never a file in the run's directory.
    check_run(config.model_copy(update={"allow_unisolated": options.allow_unisolated}), tasks, out)
    extra_check(config, tasks, out)
    if resume:
        check_ledger(out)
    else:
        create_run(config, out, options.journal)
    return config, tasks


def resolve_run(
    options: TakeoverOptions, explicit: set[str], out: Path, *, resume: bool
) -> tuple[RunConfig, tuple[Task, ...]]:
    """The settings and the tasks, unchecked and not written. Raises RunUsageError or TaskSourceError."""
    if resume:
        config = load_config(out)
        if options.journal is not None:
            explicit = explicit | {"journal"}
        elif config.journal is not None:
            raise RunUsageError(f"--journal: the rows of this run are in {config.journal} (pass it again)")
        options = _mix_agents(options, config.study, is_new=False)
        changes = _select_explicit(options, explicit)
        if "tasks" in changes:  # moved: their digests decide
            config = config.model_copy(update={"tasks": changes.pop("tasks")})
        reason = find_changed_option(config, changes)
        if reason is not None:
            raise RunUsageError(reason)
        tasks = load_all_tasks(config)
        _check_inputs_unchanged(config, tasks, out)
        return config, _select_shard(config, tasks)
    check_unused(out)
    if options.study is not None:
        decided = get_study(options.study).get_options(options.limit)
        # Two rules of selection: the explicit one replaces the study's.
        if explicit & {"quota", "max_points"}:
            decided |= {"quota": None, "max_points": None}
        left = {name: value for name, value in decided.items() if name not in explicit}
        options = _mix_agents(options.model_copy(update=left), options.study)
    settled = _resolve_settings(options)
    settled["models"] = {**load_source_models(settled["records_of"]), **settled["models"]}
    config = keep_used_models(RunConfig(run_id=make_run_id(), sandbox="process", **settled))
    config = config.model_copy(update={"predecessor_limits": _find_predecessor_limits(config)})
    every = load_all_tasks(config)
    tasks = _select_shard(config, every)
    recordings, backend = _assign_recordings(config, tasks), _choose_backend(options, tasks)
    found = {
        "recordings": recordings,
        "sandbox": backend,
        "inputs": compute_inputs(every, backend, recordings),
    }
    return config.model_copy(update=found), tasks


def _check_inputs_unchanged(config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
    """Raises RunUsageError if the run would mix results of different tasks, recordings or prompts."""
    difference = find_input_difference(
        config.inputs, compute_inputs(tasks, config.sandbox, config.recordings)
    )
    if difference is not None:
        raise RunUsageError(
            f"--resume: {difference} since the run in {out} started (restore it, or start a new run with another --out)"
        )


def _assign_recordings(config: RunConfig, tasks: Sequence[Task]) -> dict[str, dict[str, str]]:
    """The recordings of the replays by task. Raises ModelNameError, or RunUsageError if a task has no model."""
    names = dict.fromkeys((*config.predecessors, *config.successors))
    replays = [name for name in names if models.parse_model_name(name).kind == "replay"]
    if not replays:
        return {}
    from langgraph_takeover.evals.models.replay import assign_recordings

    recordings = {name: assign_recordings(name, tasks, is_part=config.shard is not None) for name in replays}
    for role, own in (("predecessor", config.predecessors), ("successor", config.successors)):
        known = set().union(*(recordings[name] for name in own if name in recordings))
        missing = [task.id for task in tasks if task.id not in known]
        if missing and all(name in recordings for name in own):
            more = f" and {len(missing) - 1} more tasks" if len(missing) > 1 else ""
            having = ",".join(task.id for task in tasks if task.id in known)
            raise RunUsageError(
                f"--{role}: no recording of {missing[0]}{more} (pass one, or --task-ids {having or 'of other tasks'})"
            )
    return recordings


def _mix_agents(options: TakeoverOptions, study: str | None, *, is_new: bool = True) -> TakeoverOptions:
    """The options with what the study `agents` adds to those of the user. Raises RunUsageError."""
    if study is None or not get_study(study).mixes_agents:
        return options
    names = list(dict.fromkeys([*(options.predecessor or ()), *(options.successor or ())]))
    if is_new and not names:
        names = list_installed(options.model, _read_agent_programs(options.agent_program or ()))
    view = add_continuation(options.view)
    return options.model_copy(update={"view": view, "predecessor": names, "successor": names})


def _find_predecessor_limits(config: RunConfig) -> AgentLimits:
    if config.records_of is None:
        return {}
    try:
        before = load_config(Path(config.records_of)).for_predecessors()
    except RunUsageError:
        return {}  # `check_source` reports it
    limits = {name: getattr(before, name) for name in AgentLimits.__annotations__}
    differ = {name: limit for name, limit in limits.items() if limit != getattr(config, name)}
    return cast("AgentLimits", differ)


def load_all_tasks(config: RunConfig) -> tuple[Task, ...]:
    """The tasks of a run, of all its shards. Raises RunUsageError or TaskSourceError."""
    tasks = tuple(
        task.model_copy(update={"prompt_name": config.prompt})
        for task in load_tasks(config.tasks, config.task_ids, config.limit)
    )
    if config.study is not None and get_study(config.study).tasks is not None:
        check_tiers(tasks, config.tasks)
    if not tasks:
        raise RunUsageError(f"--tasks: {config.tasks} contains no task")
    return tasks


def _select_shard(config: RunConfig, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    if config.shard is None:
        return tasks
    mine = read_shard(config.shard).select(tasks)
    if not mine:
        raise RunUsageError(f"--shard: {config.shard} of {len(tasks)} tasks is empty")
    return mine


def check_unused(out: Path) -> None:
    """Raises RunUsageError if the directory contains a run."""
    if (out / CONFIG_FILE).exists():
        raise RunUsageError(
            f"{out} already contains a run (continue it with --resume, or choose another --out)"
        )


def check_ledger(out: Path) -> None:
    """Raises LedgerVersionError if this version cannot resume the threads of a run."""
    from langgraph_takeover.base.takeover_error import LedgerUnavailableError
    from langgraph_takeover.evals.run.settings.config import RunPaths
    from langgraph_takeover.handoff.ledger.database import LedgerVersionError

    try:
        with RunPaths(out).home():
            pass
    except LedgerVersionError:
        raise
    except LedgerUnavailableError:
        pass  # a damaged database is a failure of the host, which the run itself reports


def create_run(config: RunConfig, out: Path, journal: str | None = None) -> None:
    """Create a run's directory with its journal, and its settings last. Raises RunUsageError or LedgerUnavailableError."""
    from langgraph_takeover.evals.run.journal import create_journal
    from langgraph_takeover.evals.run.settings.config import RunPaths

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunUsageError(f"--out: {out}: {describe_error(error)}") from error
    with RunPaths(out).home():
        create_journal(out, journal, config.run_id)
        config.save(out)


def _resolve_settings(options: TakeoverOptions) -> dict[str, Any]:
    return {
        **select_options(RunOptions, options),
        "views": read_views(options.view),
        "points": read_points(options.points),
        "quotas": _read_quotas(options),
        "tasks": locate_source(options.tasks),
        "task_ids": read_ids(options.task_ids),
        "predecessors": _deduplicate(options.predecessor or [options.model]),
        "successors": _deduplicate(options.successor or [options.model]),
        "agent_programs": _read_agent_programs(options.agent_program or ()),
        "models": load_models_option(options.models),
        "journal": remove_password(options.journal),
        "records_of": str(options.records_of.resolve()) if options.records_of else None,
    }


def _read_quotas(options: TakeoverOptions) -> tuple[str, ...]:
    quotas = tuple(options.quota or ())
    read_quotas(quotas)
    if quotas and options.max_points is not None:
        raise RunUsageError("--max-points: cannot be combined with --quota (pass other quotas instead)")
    return quotas


def _read_agent_programs(texts: Sequence[str]) -> dict[str, str]:
    """Commands of external agents by name. Raises RunUsageError."""
    programs: dict[str, str] = {}
    for text in texts:
        name, _, program = text.partition("=")
        if name not in AGENT_NAMES or not program:
            raise RunUsageError(
                f"--agent-program: not AGENT=FILE: {text!r:.60} (agents: {', '.join(AGENT_NAMES)})"
            )
        programs[name] = str(Path(program).expanduser().absolute())
    return programs


def _deduplicate(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _select_explicit(options: TakeoverOptions, explicit: set[str]) -> dict[str, Any]:
    """The options that the user passed to a resumed run, named like the stored settings."""
    settled = _resolve_settings(options)
    changes = {
        field: settled[field]
        for name in explicit
        for field in OPTION_FIELDS.get(name, (name,))
        if field in settled
    }
    if "sandbox" in explicit and options.sandbox != "auto":
        changes["sandbox"] = options.sandbox
    return changes


def _choose_backend(options: TakeoverOptions, tasks: tuple[Task, ...]) -> BackendName:
    if options.sandbox != "auto":
        return options.sandbox
    found = (
        "docker"
        if any(task.stream is None for task in tasks)
        else sandbox.default_backend(allow_process=True)
    )
    if found == "process" and options.records_of:
        raise RunUsageError(
            f"--sandbox: no isolated sandbox is available, and the records of {options.records_of} would run as "
            "your user (see sandbox probe, or pass --sandbox process if you trust them)"
        )
    return found
