"""From what a person asked for to a run's fixed settings and tasks, with every doubt raised before work begins."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import sandbox
from evals import models
from evals.run.config import (
    CONFIG_FILE,
    BadUsage,
    RunConfig,
    differing,
    load_config,
    new_run_id,
    read_ids,
    read_points,
    read_views,
    without_password,
)
from evals.run.options import FIELDS, RunOptions
from evals.run.study import check_tiers, read_shard, study_named
from evals.tasks import BadTasks, Task, load_tasks
from evals.tasks.grading import check_gradable
from handoff.action import Protocol
from handoff.outside import describe_error
from handoff.redaction import redacted
from sandbox.machine import BackendName, SandboxUnavailable

_CHOICES = {"protocol": get_args(Protocol), "sandbox": ("auto", *get_args(BackendName))}


def usage_errors(*also: type[Exception]) -> tuple[type[Exception], ...]:
    """What a person can mend by asking otherwise; each says how."""
    from evals.run.journal import BadJournal, OutInUse

    return (BadUsage, models.BadModel, BadTasks, BadJournal, OutInUse, *lost_on_the_way(), *also)


def lost_on_the_way() -> tuple[type[Exception], ...]:
    """Those of them that, once a run has begun, say that its host has failed it."""
    from handoff.ledger import LedgerUnusable

    return (LedgerUnusable, SandboxUnavailable)


def prepared(
    options: dict[str, Any],
    given: set[str],
    out: Path,
    *,
    resume: bool,
    also: Callable[[RunConfig, tuple[Task, ...], Path], None] = lambda config, tasks, out: None,
) -> tuple[RunConfig, tuple[Task, ...]]:
    """The settings, on disk, and the tasks; `also` is the last doubt, raised before anything is written.

    Raises BadUsage, BadModel, BadTasks, LedgerUnusable or SandboxUnavailable.
    """
    config, tasks = settled_run(options, given, out, resume=resume)
    check(config, tasks, out)
    also(config, tasks, out)
    if not resume:
        lay_down(config, out, options["journal"])
    return config, tasks


def settled_run(
    options: dict[str, Any], given: set[str], out: Path, *, resume: bool
) -> tuple[RunConfig, tuple[Task, ...]]:
    """The same with nothing written, and nothing asked of models or machines. Raises BadUsage or BadTasks."""
    for name, choices in _CHOICES.items():
        if options[name] not in choices:
            raise BadUsage(f"--{name}: there is no {options[name]!r}; there are {', '.join(choices)}")
    if resume:
        config = load_config(out)
        if options["journal"] is not None:
            given = given | {"journal"}
        elif config.journal is not None:
            raise BadUsage(f"--journal: the rows of this run are in {config.journal}; name it again")
        reason = differing(config, _asked(options, given))
        if reason is not None:
            raise BadUsage(reason)
        return config, tasks_of(config)
    check_unused(out)
    if options["study"] is not None:
        decided = study_named(options["study"]).options
        options = options | {name: value for name, value in decided.items() if name not in given}
    settled = _settled(options)
    config = RunConfig(run_id=new_run_id(), sandbox="process", **settled)
    tasks = tasks_of(config)
    return config.model_copy(update={"sandbox": _backend(options, tasks)}), tasks


def tasks_of(config: RunConfig) -> tuple[Task, ...]:
    """The tasks of a run, or of its shard. Raises BadUsage or BadTasks."""
    tasks = load_tasks(config.tasks, config.task_ids, config.limit)
    if config.study is not None:
        check_tiers(tasks, config.tasks)
    if not tasks:
        raise BadUsage(f"--tasks: {config.tasks} holds no task")
    if config.shard is None:
        return tasks
    mine = read_shard(config.shard).share(tasks)
    if not mine:
        raise BadUsage(f"--shard: {config.shard} of {len(tasks)} tasks holds none")
    return mine


def check_unused(out: Path) -> None:
    """Raises BadUsage for a directory that holds a run."""
    if (out / CONFIG_FILE).exists():
        raise BadUsage(f"{out} holds a run already; go on with it by --resume, or choose another --out")


def lay_down(config: RunConfig, out: Path, journal: str | None = None) -> None:
    """Begin a run's directory with its journal and, last, its settings. Raises BadUsage or LedgerUnusable."""
    from evals.run.journal import begin
    from evals.run.places import Places

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadUsage(f"--out: {out}: {describe_error(error)}") from error
    with Places(out).home():
        begin(out, journal, config.run_id)
        config.save(out)


def _settled(options: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: options[name] for name in get_type_hints(RunOptions)},
        "views": read_views(options["view"]),
        "points": read_points(options["points"]),
        "tasks": options["tasks"],
        "task_ids": read_ids(options["task_ids"]),
        "predecessors": _models(options["predecessor"] or [options["model"]]),
        "successors": _models(options["successor"] or [options["model"]]),
        "journal": without_password(options["journal"]),
        "records_of": str(options["records_of"].resolve()) if options["records_of"] else None,
    }


def _models(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _asked(options: dict[str, Any], given: set[str]) -> dict[str, Any]:
    """The settings that a resumed run was given anew, as the stored ones are named."""
    settled = _settled(options)
    asked = {
        field: settled[field] for name in given for field in FIELDS.get(name, (name,)) if field in settled
    }
    if "sandbox" in given and options["sandbox"] != "auto":
        asked["sandbox"] = options["sandbox"]
    return asked


def _backend(options: dict[str, Any], tasks: tuple[Task, ...]) -> BackendName:
    if options["sandbox"] != "auto":
        return options["sandbox"]  # type: ignore[no-any-return]
    found = "docker" if any(task.stream is None for task in tasks) else sandbox.default_backend()
    if found == "process" and options["records_of"]:
        raise BadUsage(
            f"--sandbox: no isolated sandbox is to be had here, and the records of {options['records_of']} would run as "
            "you; see python -m sandbox probe, or say --sandbox process if you trust them"
        )
    return found


def check(config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
    """Find out before a run what would make it fail. Raises BadUsage, BadModel, BadTasks or SandboxUnavailable."""
    from handoff.views import NEED_NOTES

    if config.records_of is not None:
        from evals.run.reuse import check_source

        check_source(config)
    if redacted(config.base_url) != config.base_url:
        raise BadUsage(
            "--base-url: it holds a secret, which would be written down; set OPENAI_API_KEY instead"
        )
    writers = tuple(config.writer(name) for name in config.predecessors)
    for name in dict.fromkeys((*config.predecessors, *config.successors, *writers)):
        models.check(name, tasks, config.base_url)
    if any(models.read_name(name).kind == "replay" for name in writers) and len(config.views) > 1:
        wanting = [view for view in config.views if view in NEED_NOTES]
        if wanting:
            raise BadUsage(
                f"--notes-model: a replay writes no notes, but {wanting[0]} needs them; name an LLM"
            )
    for task in tasks:
        task.spec(config.sandbox, config.run_id, out)
    _check_sandbox(config, tasks)
    check_gradable(tasks)


def _check_image(task: Task, config: RunConfig) -> None:
    from sandbox.container import require_image

    image = task.spec(config.sandbox, config.run_id, Path()).image
    if image is None:
        return
    try:
        require_image(image)
    except SandboxUnavailable as error:
        dockerfile = task.directory is not None and (task.directory / "Dockerfile").is_file()
        cure = f"docker build -t {image} {task.directory}" if dockerfile else f"docker pull {image}"
        raise BadUsage(f"task {task.id}: its image is not on this Docker daemon; get it: {cure}") from error


def _check_sandbox(config: RunConfig, tasks: tuple[Task, ...]) -> None:
    if config.sandbox == "process" and not config.allow_unisolated:
        strangers = [
            name for name in (*config.predecessors, *config.successors) if not models.is_builtin(name)
        ]
        if strangers:
            raise BadUsage(
                f"--sandbox process would run the commands of {strangers[0]} as you, with your files and your "
                "network; choose host or docker, or say --allow-unisolated"
            )
    if config.sandbox == "host":
        from sandbox.host import unavailable

        reason = unavailable()
        if reason is not None:
            raise BadUsage(f"--sandbox host: {reason}; or choose docker or process")
    if config.sandbox == "docker":
        from sandbox.container import client

        client()
        if shutil.which("docker") is None:
            raise BadUsage(
                "--sandbox docker: the docker command, which swebench's harness uses, is not installed"
            )
    if config.sandbox != "process":
        for task in tasks:
            _check_image(task, config)


def check_takeovers(config: RunConfig, tasks: tuple[Task, ...], out: Path) -> None:
    """The same for a run that has its records and notes already. Raises BadUsage, BadModel or SandboxUnavailable."""
    only = {"predecessors": config.successors, "notes_model": config.successors[0], "views": ()}
    check(config.model_copy(update=only), tasks, out)
