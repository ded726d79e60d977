"""The settings and tasks of a run, from the command-line options; validates everything up front."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

from langgraph_takeover import sandbox
from langgraph_takeover.evals import models
from langgraph_takeover.evals.run.settings.config import (
    CONFIG_FILE,
    AgentLimits,
    RunConfig,
    RunUsageError,
    find_changed_option,
    load_config,
    make_run_id,
    read_ids,
    read_points,
    read_views,
    remove_password,
)
from langgraph_takeover.evals.run.settings.entries import (
    check_windows,
    keep_used_models,
    load_models_option,
    load_source_models,
)
from langgraph_takeover.evals.run.settings.options import OPTION_FIELDS, RunOptions
from langgraph_takeover.evals.run.settings.point_selection import read_quotas
from langgraph_takeover.evals.run.settings.shards import read_shard
from langgraph_takeover.evals.run.settings.study import check_tiers, get_study
from langgraph_takeover.evals.tasks import Task, TaskSourceError, load_tasks
from langgraph_takeover.evals.tasks.grading import check_gradable
from langgraph_takeover.handoff.text.files import describe_error
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.handoff.trace.action import ActionProtocol
from langgraph_takeover.sandbox.interface import BackendName, SandboxUnavailableError

_CHOICES = {
    "protocol": get_args(ActionProtocol),
    "prompt": ("short", "paper"),
    "sandbox": ("auto", *get_args(BackendName)),
}


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


def prepare_run(
    options: dict[str, Any],
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
    check_run(config, tasks, out)
    extra_check(config, tasks, out)
    if resume:
        check_ledger(out)
    else:
        create_run(config, out, options["journal"])
    return config, tasks


def resolve_run(
    options: dict[str, Any], explicit: set[str], out: Path, *, resume: bool
) -> tuple[RunConfig, tuple[Task, ...]]:
    """The settings and the tasks, unchecked and not written. Raises RunUsageError or TaskSourceError."""
    for name, choices in _CHOICES.items():
        if options[name] not in choices:
            raise RunUsageError(f"--{name}: unknown value {options[name]!r} (use {', '.join(choices)})")
    if resume:
        config = load_config(out)
        if options["journal"] is not None:
            explicit = explicit | {"journal"}
        elif config.journal is not None:
            raise RunUsageError(f"--journal: the rows of this run are in {config.journal} (pass it again)")
        reason = find_changed_option(config, _select_explicit(options, explicit))
        if reason is not None:
            raise RunUsageError(reason)
        return config, load_run_tasks(config)
    check_unused(out)
    if options["study"] is not None:
        decided = get_study(options["study"]).get_options(options["limit"])
        options = options | {name: value for name, value in decided.items() if name not in explicit}
    settled = _resolve_settings(options)
    settled["models"] = {**load_source_models(settled["records_of"]), **settled["models"]}
    config = keep_used_models(RunConfig(run_id=make_run_id(), sandbox="process", **settled))
    config = config.model_copy(update={"predecessor_limits": _find_predecessor_limits(config)})
    tasks = load_run_tasks(config)
    return config.model_copy(update={"sandbox": _choose_backend(options, tasks)}), tasks


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


def load_run_tasks(config: RunConfig) -> tuple[Task, ...]:
    """The tasks of a run or of its shard. Raises RunUsageError or TaskSourceError."""
    tasks = tuple(
        task.model_copy(update={"prompt_name": config.prompt})
        for task in load_tasks(config.tasks, config.task_ids, config.limit)
    )
    if config.study is not None:
        check_tiers(tasks, config.tasks)
    if not tasks:
        raise RunUsageError(f"--tasks: {config.tasks} contains no task")
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
    from langgraph_takeover.evals.run.paths import RunPaths
    from langgraph_takeover.handoff.ledger.database import LedgerUnavailableError, LedgerVersionError

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
    from langgraph_takeover.evals.run.paths import RunPaths

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunUsageError(f"--out: {out}: {describe_error(error)}") from error
    with RunPaths(out).home():
        create_journal(out, journal, config.run_id)
        config.save(out)


def _resolve_settings(options: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: options[name] for name in get_type_hints(RunOptions)},
        "views": read_views(options["view"]),
        "points": read_points(options["points"]),
        "quotas": _read_quotas(options),
        "tasks": options["tasks"],
        "task_ids": read_ids(options["task_ids"]),
        "predecessors": _deduplicate(options["predecessor"] or [options["model"]]),
        "successors": _deduplicate(options["successor"] or [options["model"]]),
        "models": load_models_option(options["models"]),
        "journal": remove_password(options["journal"]),
        "records_of": str(options["records_of"].resolve()) if options["records_of"] else None,
    }


def _read_quotas(options: dict[str, Any]) -> tuple[str, ...]:
    quotas = tuple(options["quota"] or ())
    read_quotas(quotas)
    if quotas and options["max_points"] is not None:
        raise RunUsageError("--max-points: cannot be combined with --quota (pass other quotas instead)")
    return quotas


def _deduplicate(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _select_explicit(options: dict[str, Any], explicit: set[str]) -> dict[str, Any]:
    """The options that the user passed to a resumed run, named like the stored settings."""
    settled = _resolve_settings(options)
    changes = {
        field: settled[field]
        for name in explicit
        for field in OPTION_FIELDS.get(name, (name,))
        if field in settled
    }
    if "sandbox" in explicit and options["sandbox"] != "auto":
        changes["sandbox"] = options["sandbox"]
    return changes


def _choose_backend(options: dict[str, Any], tasks: tuple[Task, ...]) -> BackendName:
    if options["sandbox"] != "auto":
        return options["sandbox"]  # type: ignore[no-any-return]
    found = "docker" if any(task.stream is None for task in tasks) else sandbox.default_backend()
    if found == "process" and options["records_of"]:
        raise RunUsageError(
            f"--sandbox: no isolated sandbox is available, and the records of {options['records_of']} would run as "
            "your user (see sandbox probe, or pass --sandbox process if you trust them)"
        )
    return found


def check_run(config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
    """Detect before a run what would make it fail.

    Raises RunUsageError, ModelNameError, TaskSourceError or SandboxUnavailableError.
    """
    from langgraph_takeover.handoff.views import VIEWS_WITH_NOTES

    if config.records_of is not None:
        from langgraph_takeover.evals.run.reuse import check_source

        check_source(config)
    if redact(config.base_url) != config.base_url:
        raise RunUsageError(
            "--base-url: contains a secret, which the run would store (set OPENAI_API_KEY instead)"
        )
    writers = tuple(config.choose_writer(name) for name in config.predecessors)
    for name in dict.fromkeys((*config.predecessors, *config.successors, *writers)):
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
    check_gradable(tasks)


def _check_image(task: Task, config: RunConfig) -> None:
    from langgraph_takeover.sandbox.backends.docker import require_image

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
        from langgraph_takeover.sandbox.backends.docker import client

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
