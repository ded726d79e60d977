"""The settings of one run, fixed at its start and stored with its results: models, files, directories, shard."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from pydantic import Field, ValidationError
from typing_extensions import TypedDict

from langgraph_takeover.base.takeover_error import TakeoverError, describe_other_version
from langgraph_takeover.base.untrusted_input import describe_error, parse_json, read_untrusted_file
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.evals import models
from langgraph_takeover.evals.models import (
    ModelEntry,
    ModelPrice,
    drop_agent,
    find_entry_difference,
    is_llm,
    parse_model_name,
    split_agent,
)
from langgraph_takeover.evals.run.rows import STAGES
from langgraph_takeover.evals.run.settings.inputs import RunInputs
from langgraph_takeover.evals.run.settings.run_options import OPTION_FIELDS, CommandOptions, RunOptions
from langgraph_takeover.handoff.names import CONTINUATION
from langgraph_takeover.handoff.records.record import RecordStore, write_durably
from langgraph_takeover.handoff.trace.events import PointKind
from langgraph_takeover.sandbox.interface import BackendName, SandboxSpec

if TYPE_CHECKING:
    from langgraph_takeover import Home
    from langgraph_takeover.evals.tasks import Task

_SHARD = re.compile(r"([\d,\-]+)/(\d+)")
_Item = TypeVar("_Item")


class Shard(NamedTuple):
    """Some of the equal parts of a run. Each task belongs to one part."""

    parts: frozenset[int]
    """Part numbers, from 1."""
    total: int

    def select(self, items: Sequence[_Item]) -> tuple[_Item, ...]:
        return tuple(item for number, item in enumerate(items) if number % self.total + 1 in self.parts)


def read_shard(text: str) -> Shard:
    """`2/8`, `1-3/8` or `1,5-6/8`. Raises RunUsageError."""
    matched = _SHARD.fullmatch(text)
    if matched is None:
        raise RunUsageError(f"--shard: invalid shard {text!r} (use 2/8, 1-3/8 or 1,5-6/8)")
    of = int(matched[2])
    parts: list[int] = []
    for piece in matched[1].split(","):
        first, _, last = piece.partition("-")
        if not first.isdigit() or (last and not last.isdigit()) or "-" in last:
            raise RunUsageError(f"--shard: {piece!r} in {text!r} is neither a number nor a range such as 1-3")
        parts += range(int(first), int(last or first) + 1)
    outside = [part for part in parts if not 1 <= part <= of]
    if outside or not parts:
        raise RunUsageError(f"--shard: {text!r}: parts are counted from 1 to {of}")
    twice = [part for part, number in Counter(parts).items() if number > 1]
    if twice:
        raise RunUsageError(f"--shard: {text!r} names part {twice[0]} twice")
    return Shard(frozenset(parts), of)


def load_models_option(path: Path | None) -> models.Models:
    """The entries of `--models`; none without it. Raises ModelsFileError."""
    if path is None:
        return {}
    try:
        return models.load_models(path)
    except models.ModelsFileError as error:
        raise models.ModelsFileError(f"--models: {error}") from error


def load_source_models(records_of: str | None) -> models.Models:
    """The entries of the earlier run, for names that the models file does not define."""
    try:
        return load_config(Path(records_of)).models if records_of is not None else {}
    except RunUsageError:
        return {}  # `check_source` reports it


def find_model_difference(before: RunConfig, config: RunConfig, name: str) -> str | None:
    """The first difference of a model's entry in two runs, except its price, which changes no result."""
    name = _strip_agent(name)
    stored, given = (
        {name: one.models[name].model_copy(update={"price": None})} if name in one.models else {}
        for one in (before, config)
    )
    return models.find_entry_difference(stored, given) or models.find_entry_difference(given, stored)


def keep_used_models(config: RunConfig) -> RunConfig:
    """The settings without entries that the run does not use. Raises ModelNameError for an entry that the file lacks."""
    used = (*config.predecessors, *config.successors, *map(config.choose_writer, config.predecessors))
    if config.models:
        for name in used:
            models.require_entry(name, config.models)
    return config.model_copy(
        update={
            "models": {
                name: entry for name, entry in config.models.items() if name in map(_strip_agent, used)
            }
        }
    )


def _strip_agent(name: str) -> str:
    return models.split_agent(name)[1]


def check_windows(config: RunConfig) -> None:
    """Raises RunUsageError if conversations are to be condensed, but there is no LLM, or its context window is unknown."""
    if not config.condense:
        return
    if not any(map(models.is_llm, (*config.predecessors, *config.successors))):
        raise RunUsageError(
            "--condense: no model of this run is an LLM, so nothing can be condensed (omit the option)"
        )
    for name in dict.fromkeys((*config.predecessors, *config.successors)):
        if models.is_llm(name) and not models.split_agent(name)[0] and config.find_window(name) is None:
            model = models.build_llm(name, base_url=config.base_url, models=config.models)
            if not (model.profile or {}).get("max_input_tokens"):
                raise RunUsageError(
                    f"--condense: the context window of {name} is unknown (write it as window into its entry of "
                    "--models, or pass --window-tokens)"
                )


CONFIG_FILE = "config.json"
SCHEMA_VERSION: Final = 2
"""The version of a run's settings and rows: no other one is read."""
BASELINE = "repository"
POINTS: tuple[PointKind, ...] = ("first_source_edit", "first_validation", "first_post_failure_edit")


class RunUsageError(TakeoverError, ValueError):
    """An option that the user must correct. The text says how."""


class AgentLimits(TypedDict, total=False):
    """The settings of agents that may differ between a run and the earlier run whose predecessors it reuses."""

    max_steps: int
    max_tokens: int | None
    max_seconds: float
    max_reply_tokens: int | None
    window_tokens: int | None
    condense: bool


class TakeoverOptions(Frozen, CommandOptions):
    """The options of one call of the main command."""


class RunConfig(Frozen, RunOptions):
    """All settings that influence a run's rows. Contains no secret."""

    schema_version: Literal[2] = SCHEMA_VERSION
    run_id: str
    views: tuple[str, ...]
    predecessors: tuple[str, ...] = Field(min_length=1)
    successors: tuple[str, ...] = Field(min_length=1)
    tasks: str
    task_ids: tuple[str, ...] = ()
    records_of: str | None = None
    """The directory of an earlier run whose predecessors, records, labels and notes are reused."""
    predecessor_limits: AgentLimits = AgentLimits()
    """The limits of the predecessors of that earlier run, where they differ from this run's."""
    models: Mapping[str, ModelEntry] = {}
    """The entries of the models file that the run uses."""
    recordings: Mapping[str, Mapping[str, str]] = {}
    """Of each replay among the models: the recording of each task that has one, as `replay:FILE#K`."""
    inputs: RunInputs = RunInputs(tasks={})
    """The digests of tasks, recordings and prompts."""
    journal: str | None = None
    """The database of rows without its password. None: the one in the results directory."""
    points: tuple[PointKind, ...] = POINTS
    agent_programs: Mapping[str, str] = {}
    """Commands of external agents by name, where they are not those on PATH."""
    quotas: tuple[str, ...] = ()
    """Numbers of handoff points by state, as `study.read_quotas` reads them."""
    sandbox: BackendName

    def describe_predecessor_limits(self) -> str | None:
        """The limits in which the reused predecessors differ, for instance `--max-steps 500 (successors: 10)`."""
        limits = (
            f"--{name.replace('_', '-')} {_format_limit(limit)} (successors: {_format_limit(getattr(self, name))})"
            for name, limit in self.predecessor_limits.items()
        )
        return ", ".join(limits) or None

    def for_predecessors(self) -> RunConfig:
        """The settings with the limits of predecessors."""
        return self.model_copy(update=dict(self.predecessor_limits))

    def find_recording(self, model: str, task_id: str) -> str:
        """The name of the model for one task: of a replay, that of the task's recording."""
        return self.recordings.get(model, {}).get(task_id, model)

    def has_task(self, model: str, task_id: str) -> bool:
        """Whether the model can work on the task: a replay needs a recording of it."""
        return model not in self.recordings or task_id in self.recordings[model]

    def choose_writer(self, predecessor: str) -> str:
        """The model that writes the notes about that predecessor's work."""
        writer = self.notes_model or (predecessor if is_llm(predecessor) else self.successors[0])
        return drop_agent(writer)

    def find_window(self, model: str) -> int | None:
        """The context window of a model in tokens, as far as the settings state it."""
        entry = self.models.get(split_agent(model)[1])
        return (entry.window if entry else None) or self.window_tokens

    def find_timeout_s(
        self, name: Literal["model_timeout_s", "read_timeout_s", "notes_timeout_s"], model: str
    ) -> float:
        """A time limit of a model's calls: its entry's, else the option's."""
        entry = self.models.get(split_agent(model)[1])
        own = getattr(entry, name) if entry else None
        return float(getattr(self, name) if own is None else own)

    def find_reply_limit(self, model: str) -> int | None:
        """The maximum number of tokens of a model's reply; None: the server's."""
        entry = self.models.get(split_agent(model)[1])
        return (entry.max_output_tokens if entry else None) or self.max_reply_tokens

    def find_price(self, model: str) -> ModelPrice | None:
        """The price of a model; None if unknown. A model that is no LLM costs nothing."""
        if not is_llm(model):
            return ModelPrice(input=0.0, output=0.0)
        entry = self.models.get(split_agent(model)[1])
        return entry.price if entry else None

    def name_run(self, task_id: str, predecessor: str) -> str:
        """The name of a predecessor's run, used for its thread, trace and records."""
        return task_id if len(self.predecessors) == 1 else f"{task_id}.{shorten_model_name(predecessor)}"

    def save(self, out: Path) -> None:
        write_durably(out / CONFIG_FILE, self.model_dump_json(indent=1) + "\n")


class RunPaths:
    """The files and directories of a run."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.repositories = out / ".repositories"
        self.logs = out / "grading"
        self.records = RecordStore(out / "records")
        self.traces = out / "traces"

    def home(self) -> AbstractContextManager[Home]:
        """Checkpoints, records and snapshots. Raises LedgerUnavailableError."""
        from langgraph_takeover import open_home

        return open_home(self.out)

    def spec(self, config: RunConfig, task: Task) -> SandboxSpec:
        """The spec of the sandbox in which the task starts."""
        return task.build_spec(config.sandbox, config.run_id, self.repositories)


_ConfigT = TypeVar("_ConfigT", bound=RunConfig)
_NameT = TypeVar("_NameT", bound=str)


@lru_cache
def shorten_model_name(model: str) -> str:
    """A model's name for use in file names, different for different models."""
    agent, own = split_agent(model)
    parsed = parse_model_name(model) if is_llm(model) else None
    short = own.partition(":")[2]
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", short):
        plain = parsed.server_name if parsed else short
        last = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(plain).name)[:40].strip("-")
        short = f"{last}-{hashlib.sha256(own.encode()).hexdigest()[:6]}"
    return f"{agent}-{short}" if agent else short


def make_run_id() -> str:
    return secrets.token_hex(4)


def load_config(out: Path) -> RunConfig:
    """The settings of the run in `out`. Raises RunUsageError."""
    return load_config_as(out, RunConfig)


def load_config_as(out: Path, kind: type[_ConfigT]) -> _ConfigT:
    """The settings of that type of run in `out`. Raises RunUsageError."""
    path = out / CONFIG_FILE
    try:
        text = read_untrusted_file(path)
        _check_version(path, text)
        return kind.model_validate_json(text)
    except FileNotFoundError as error:
        raise RunUsageError(f"{path}: run not found (pass the directory of a run)") from error
    except OSError as error:
        raise RunUsageError(f"{path}: {describe_error(error)}") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise RunUsageError(f"{path}: field {field}: {first['msg']}") from error


def _check_version(path: Path, text: bytes) -> None:
    """Raises RunUsageError for the settings of another version."""
    try:
        content = parse_json(text)
    except ValueError:
        return  # the validation says where it is damaged
    found = content.get("schema_version", 1) if isinstance(content, dict) else SCHEMA_VERSION
    if found != SCHEMA_VERSION:
        refusal = describe_other_version(found, SCHEMA_VERSION, "start a new run with another --out")
        raise RunUsageError(f"{path}: {refusal}")


def read_views(text: str) -> tuple[str, ...]:
    """The selected views, the baseline first. `all` does not include `continuation`. Raises RunUsageError."""
    from langgraph_takeover.handoff.views import VIEWS

    known = (*VIEWS, CONTINUATION)
    names = [name for part in _split(text) for name in (VIEWS if part == "all" else (part,))]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise RunUsageError(
            f"--view: unknown view {', '.join(unknown) or text!r} (use {', '.join(known)}, all)"
        )
    return tuple(dict.fromkeys((BASELINE, *names)))


def read_stages(text: str) -> tuple[str, ...]:
    """Raises RunUsageError."""
    return read_names("--stages", "stage", text, tuple(STAGES))


def read_points(text: str) -> tuple[PointKind, ...]:
    """Raises RunUsageError."""
    return read_names("--points", "point", text, POINTS)


def read_names(option: str, noun: str, text: str, choices: tuple[_NameT, ...]) -> tuple[_NameT, ...]:
    """The selected choices, in their given order. Raises RunUsageError."""
    names = choices if "all" in _split(text) else tuple(_split(text))
    unknown = [name for name in names if name not in choices]
    if unknown or not names:
        raise RunUsageError(
            f"{option}: unknown {noun} {', '.join(unknown) or text!r} (use {', '.join(choices)}, all)"
        )
    return tuple(name for name in choices if name in names)


def read_ids(text: str | None) -> tuple[str, ...]:
    """Ids separated by commas, or the lines of a file named @FILE. Raises RunUsageError."""
    if text is None:
        return ()
    if text.startswith("@"):
        try:
            lines = read_untrusted_file(Path(text[1:])).decode().split()
        except OSError as error:
            raise RunUsageError(f"--task-ids: {text[1:]}: {describe_error(error)}") from error
        except UnicodeDecodeError as error:
            raise RunUsageError(f"--task-ids: {text[1:]}: not UTF-8 text") from error
    else:
        lines = _split(text)
    if not lines:
        raise RunUsageError(f"--task-ids: {text!r} contains no task id (omit the option for all tasks)")
    return tuple(dict.fromkeys(lines))


def remove_password(url: str | None) -> str | None:
    """A database URL without its password and with an absolute path, for storing. Raises RunUsageError."""
    if not url:
        return None
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise RunUsageError("--journal: not a database URL (use postgresql://… or sqlite:///FILE)") from error
    file = parsed.database or ""
    if parsed.get_backend_name() == "sqlite" and file and not file.startswith((":", "file:")):
        parsed = parsed.set(database=str(Path(file).absolute()))
    return parsed.render_as_string(hide_password=True)


def find_changed_option(stored: RunConfig, new_values: dict[str, Any]) -> str | None:
    """The first option, if any, whose value differs from the run's."""
    before = json.loads(stored.model_dump_json())
    for name, value in new_values.items():
        if name == "models":
            difference = find_entry_difference(stored.models, value)
            if difference is not None:
                return f"--models: not the file of this run: {difference} (omit the option to resume)"
            continue
        now = list(value) if isinstance(value, tuple) else value
        if before[name] != now:
            options = {fields[0]: option for option, fields in OPTION_FIELDS.items()} | {"records_of": "from"}
            option = options.get(name, name).replace("_", "-")
            return f"--{option}: the run has {before[name]!r}, not {now!r} (omit the option to resume)"
    return None


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _format_limit(limit: object) -> str:
    if isinstance(limit, bool):
        return "on" if limit else "off"
    return "none" if limit is None else str(limit)
