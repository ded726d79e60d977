"""The models file: one entry per model, with its endpoint, its options and its prices."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml
from pydantic import Field, JsonValue, ValidationError, field_validator

from langgraph_takeover.base.secret_names import is_secret_name, is_secret_setting
from langgraph_takeover.base.takeover_error import TakeoverError
from langgraph_takeover.base.untrusted_input import describe_error, read_untrusted_file
from langgraph_takeover.base.values import Frozen
from langgraph_takeover.evals.models.model_names import split_agent
from langgraph_takeover.handoff.text.redaction import redact

if TYPE_CHECKING:
    from langgraph_takeover.nodes.context.settings import Prices

_MAX_FILE_BYTES = 1 << 18
_MAX_TOKENS = 100_000_000
_MAX_SECONDS = 7 * 24 * 3600.0
_MAX_DEPTH = 20
_ENTRY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,99}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_URL_CHARS = re.compile(r"[!-~]{1,500}")
_OWN_REQUEST_FIELDS = {
    "model": "model", "temperature": "temperature",
    "max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens",
    "messages": "", "tools": "", "stream": "", "response_format": "", "n": "",
}  # fmt: skip
"""Fields of a request that the runtime itself sets, and the fields of an entry for them."""
_EXAMPLES = {
    "model": "qwen2.5-coder-7b",
    "base_url": "http://127.0.0.1:8000/v1",
    "api_key_env": "LAB_API_KEY",
    "temperature": "0.2",
    "extra_body": "{reasoning_effort: low}",
    "max_output_tokens": "8192",
    "window": "131072",
    "model_timeout_s": "3600",
    "read_timeout_s": "1800",
    "notes_timeout_s": "7200",
    "price": "{input: 0.25, output: 2, cached: 0.025}",
}
_OTHER_KINDS = ("replay:", "builtin:", "native:")
_KEY_CURE = "put the key into an environment variable, and name it as api_key_env"


class ModelsFileError(TakeoverError, ValueError):
    """A models file that cannot be read, or an entry that is not valid."""


class ModelPrice(Frozen):
    """Prices in US dollars per million tokens.

    Example:
        >>> from langgraph_takeover.models import ModelPrice
        >>> ModelPrice(input=0.25, output=2.0).cached is None
        True
    """

    input: float = Field(ge=0, allow_inf_nan=False, strict=True)
    output: float = Field(ge=0, allow_inf_nan=False, strict=True)
    cached: float | None = Field(default=None, ge=0, allow_inf_nan=False, strict=True)
    """Price of cached prompt tokens. Default: the price of the others."""

    def build_prices(self) -> Prices:
        """The price as the runtime's budgets take it."""
        from langgraph_takeover.nodes.context.settings import Prices

        return Prices(prompt=self.input, completion=self.output, cached=self.cached)


class ModelEntry(Frozen):
    """One model: its name at the server, its endpoint, its options and its prices. Contains no key.

    Example:
        >>> from langgraph_takeover.models import ModelEntry
        >>> ModelEntry(model="qwen", base_url="http://127.0.0.1:8091/v1").window is None
        True
    """

    model: str = Field(min_length=1, max_length=200)
    """Name at the server; in a file, the entry's own name by default."""
    base_url: str | None = None
    """Default: `--base-url` or OPENAI_BASE_URL, else OpenAI's."""
    api_key_env: str | None = None
    """Name of the environment variable with the key. Default: none for an entry with a `base_url`, else OPENAI_API_KEY."""
    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False, strict=True)
    extra_body: Mapping[str, JsonValue] = {}
    """Further fields of every request, such as the options of a thinking model."""
    max_output_tokens: int | None = Field(default=None, ge=1, le=_MAX_TOKENS, strict=True)
    """Limit of a reply, thought included."""
    window: int | None = Field(default=None, ge=1000, le=_MAX_TOKENS, strict=True)
    """Context window in tokens."""
    model_timeout_s: float | None = Field(default=None, gt=0, le=_MAX_SECONDS, strict=True)
    """Time limit of one call, retries included. Default: `--model-timeout-s`."""
    read_timeout_s: float | None = Field(default=None, gt=0, le=_MAX_SECONDS, strict=True)
    """Time limit of a call in which the server sends nothing. Default: `--read-timeout-s`."""
    notes_timeout_s: float | None = Field(default=None, gt=0, le=_MAX_SECONDS, strict=True)
    """Time limit of one note. Default: `--notes-timeout-s`."""
    price: ModelPrice | None = None

    @property
    def prices(self) -> Prices | None:
        """The price as the runtime's budgets take it, in US dollars."""
        return self.price.build_prices() if self.price else None

    @field_validator("model")
    @classmethod
    def _check_model(cls, name: str) -> str:
        if not name.isprintable() or name != name.strip():
            raise ValueError("has invisible characters (write the name as the server lists it)")
        if redact(name) != name:
            raise ValueError(f"reads like a key, which the run would store ({_KEY_CURE})")
        agent, model = split_agent(name)
        if model.startswith((*_OTHER_KINDS, "openai:") if agent else _OTHER_KINDS):
            raise ValueError(
                "names no model of a server (pass that name itself as --predecessor or --successor)"
            )
        return name

    @field_validator("base_url")
    @classmethod
    def _check_base_url(cls, url: str | None) -> str | None:
        if url is not None and (problem := describe_url_problem(url)):
            raise ValueError(problem)
        return url

    @field_validator("api_key_env")
    @classmethod
    def _check_api_key_env(cls, name: str | None) -> str | None:
        # The value may be a key that was pasted here, so that no message repeats it.
        if name is not None and not (_VARIABLE_NAME.fullmatch(name) and is_secret_name(name)):
            raise ValueError(
                "not a variable's name that reads like a key's, so that its value would not be redacted "
                "(write a name such as LAB_API_KEY, never the key itself)"
            )
        return name

    @field_validator("extra_body")
    @classmethod
    def _check_extra_body(cls, body: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        own = [name for name in _OWN_REQUEST_FIELDS if name in body]
        if own:
            field = _OWN_REQUEST_FIELDS[own[0]]
            cure = f"use the field {field}" if field else "remove it"
            raise ValueError(f"{own[0]} is set by the runtime ({cure})")
        if not _is_plain(body):
            raise ValueError(
                f"contains an infinite number, or more than {_MAX_DEPTH} levels (write what the server documents)"
            )
        if secret := _find_secret(body):
            raise ValueError(
                f"{_shorten_text(secret)} reads like a secret, which the run would store (name a key's variable as api_key_env)"
            )
        return body


Models = Mapping[str, ModelEntry]
"""Entries by name."""


def load_models(path: Path) -> dict[str, ModelEntry]:
    """The entries of a models file by name. Raises ModelsFileError.

    Example:
        >>> from pathlib import Path
        >>> from langgraph_takeover.models import load_models
        >>> _ = Path("models.yaml").write_text("qwen:\\n  base_url: http://127.0.0.1:8091/v1\\n")
        >>> load_models(Path("models.yaml"))["qwen"].model
        'qwen'
    """
    try:
        text = read_untrusted_file(path, _MAX_FILE_BYTES).decode()
    except OSError as error:
        raise ModelsFileError(
            f"{path}: {describe_error(error)} (pass a YAML file with one entry per model)"
        ) from error
    except UnicodeDecodeError as error:
        raise ModelsFileError(f"{path}: not UTF-8 text (byte {error.start}; save it as UTF-8)") from error
    content = _parse_yaml(text, path)
    if not isinstance(content, dict) or not content:
        raise ModelsFileError(f"{path}: no entries (write one per model, such as 'qwen: {{base_url: …}}')")
    return {name: _parse_entry(path, name, fields) for name, fields in content.items()}


def find_entry_difference(stored: Models, given: Models) -> str | None:
    """The first difference of the stored models in another models file, as text; None if they are equal."""
    for name, entry in stored.items():
        if name not in given:
            return f"it has no entry {name}"
        before, now = entry.model_dump(mode="json"), given[name].model_dump(mode="json")
        for field in before:
            if before[field] != now[field]:
                return f"{name}: {field} was {before[field]!r}, now {now[field]!r}"
    return None


def describe_url_problem(url: str) -> str:
    """Why a text cannot be the address of an endpoint; empty if it can. Never repeats the text."""
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or not _URL_CHARS.fullmatch(url):
        return "not an http or https address (write it as http://127.0.0.1:8000/v1)"
    if parts.username is not None or parts.password is not None or parts.query or redact(url) != url:
        return "has a user, a password or a query, which the run would store (name the key's variable as api_key_env)"
    return ""


def _parse_entry(path: Path, name: Any, fields: Any) -> ModelEntry:
    if not isinstance(name, str) or not _ENTRY_NAME.fullmatch(name):
        raise ModelsFileError(
            f"{path}: entry {_shorten(name)}: invalid name (use up to 100 letters, digits, '.', '_', '-' and '/'; "
            "the server's own name goes into model)"
        )
    if redact(name) != name:
        raise ModelsFileError(
            f"{path}: an entry's name reads like a key, which the run would store ({_KEY_CURE})"
        )
    if not isinstance(fields, dict | None):
        raise ModelsFileError(f"{path}: entry {name}: not a list of fields (write 'field: value' below it)")
    for field in fields or ():
        if field not in ModelEntry.model_fields:
            raise ModelsFileError(f"{path}: entry {name}: {_describe_unknown_field(field)}")
    try:
        return ModelEntry.model_validate({"model": name, **(fields or {})})
    except ValidationError as error:
        raise ModelsFileError(f"{path}: entry {name}, {_describe_invalid_field(error)}") from None


def _describe_unknown_field(field: Any) -> str:
    known = list(ModelEntry.model_fields)
    if isinstance(field, str) and is_secret_name(field):
        return f"unknown field {_shorten(field)} ({_KEY_CURE})"
    near = get_close_matches(field, known, 1) if isinstance(field, str) else []
    meant = f"did you mean {near[0]}? " if near else ""
    return f"unknown field {_shorten(field)} ({meant}known: {', '.join(known)})"


def _describe_invalid_field(error: ValidationError) -> str:
    """The first invalid field and its requirement; without the value, which may be a key."""
    errors = error.errors(include_input=False, include_url=False)
    # A misspelt field explains a missing one.
    first = min(errors, key=lambda each: each["type"] != "extra_forbidden")
    field = ".".join(map(str, first["loc"][:2]))
    if first["type"] == "extra_forbidden":
        return f"field {field}: unknown (known: {', '.join(ModelPrice.model_fields)})"
    message = first["msg"].removeprefix("Value error, ")
    name = str(first["loc"][0])
    cure = "" if first["type"] == "value_error" else f" (for example {name}: {_EXAMPLES[name]})"
    return f"field {field}: {message[:1].lower()}{message[1:]}{cure}"


class _StrictLoader(yaml.SafeLoader):
    """Plain values only: no tags of other types, no aliases, which can grow without bound, no name twice."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="an alias, which a models file cannot have", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"{_shorten(key.value)} twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _parse_yaml(text: str, path: Path) -> Any:
    try:
        return yaml.load(text, _StrictLoader)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise ModelsFileError(
            f"{path}: {where}not valid YAML: {_shorten_text(problem or 'invalid characters')} (correct that line)"
        ) from None
    except RecursionError:
        raise ModelsFileError(f"{path}: nested too deeply (write one entry per model)") from None
    except (ValueError, OverflowError) as error:  # a number or a date that Python cannot represent
        raise ModelsFileError(
            f"{path}: not valid YAML: {_shorten_text(str(error))} (quote that value)"
        ) from None


def _find_secret(value: Any, path: str = "") -> str:
    """The path of the first secret in a value, such as `metadata.key`; empty without a secret."""
    if isinstance(value, str):
        return path if redact(value) != value else ""
    if isinstance(value, list):
        return next(filter(None, (_find_secret(item, path) for item in value)), "")
    for name, item in value.items() if isinstance(value, dict) else ():
        inner = f"{path}.{redact(name)}".removeprefix(".")
        if redact(name) != name or (isinstance(item, str) and is_secret_setting(name, item)):
            return inner
        if found := _find_secret(item, inner):
            return found
    return ""


def _is_plain(value: Any, depth: int = 0) -> bool:
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return depth < _MAX_DEPTH and all(_is_plain(part, depth + 1) for part in parts)
    return not isinstance(value, float) or math.isfinite(value)


def _shorten(value: Any) -> str:
    return _shorten_text(repr(redact(value) if isinstance(value, str) else value))


def _shorten_text(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() or c.isspace() else "·" for c in text).split())
    return line if len(line) <= 80 else f"{line[:79]}…"
