"""The entries of a models file in the settings of a run, and its shard."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from langgraph_takeover.evals import models
from langgraph_takeover.evals.run.settings.config import RunConfig, RunUsageError, load_config

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
