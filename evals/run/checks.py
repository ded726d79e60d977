"""Checks before a run, which detect what would make it fail."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from langgraph_takeover.evals import models
from langgraph_takeover.evals.run.settings.config import (
    RunConfig,
    RunUsageError,
    check_windows,
    shorten_model_name,
)
from langgraph_takeover.evals.tasks import Task
from langgraph_takeover.evals.tasks.grading import check_gradable
from langgraph_takeover.handoff.names import CONTINUATION
from langgraph_takeover.handoff.text.redaction import redact
from langgraph_takeover.sandbox.interface import SandboxUnavailableError


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
