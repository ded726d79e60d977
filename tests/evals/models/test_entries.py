from __future__ import annotations

import json
from pathlib import Path

import pytest

from langgraph_takeover.evals.models import (
    ModelEntry,
    ModelPrice,
    ModelsFileError,
    find_entry_difference,
    load_models,
)

KEY = "sk-canary-0123456789abcdef"
WHOLE = """
qwen:
  model: qwen2.5-coder-7b
  base_url: http://127.0.0.1:8091/v1
  api_key_env: LAB_API_KEY
  temperature: 0.2
  extra_body: {chat_template_kwargs: {enable_thinking: true}}
  max_output_tokens: 4096
  model_timeout_s: 3600
  read_timeout_s: 0.5
  notes_timeout_s: 7200
  window: 32_768
  price: {input: 1, output: 2.5, cached: 0.1}
org/gpt-5.1:
"""


def load(tmp_path: Path, text: str | bytes) -> dict[str, ModelEntry]:
    path = tmp_path / "models.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_models(path)


def test_every_field_and_every_default(tmp_path: Path) -> None:
    found = load(tmp_path, WHOLE)
    assert found["qwen"] == ModelEntry(
        model="qwen2.5-coder-7b",
        base_url="http://127.0.0.1:8091/v1",
        api_key_env="LAB_API_KEY",
        temperature=0.2,
        extra_body={"chat_template_kwargs": {"enable_thinking": True}},
        max_output_tokens=4096,
        model_timeout_s=3600.0,
        read_timeout_s=0.5,
        notes_timeout_s=7200.0,
        window=32768,
        price=ModelPrice(input=1.0, output=2.5, cached=0.1),
    )
    assert found["org/gpt-5.1"] == ModelEntry(model="org/gpt-5.1")


def test_entries_survive_the_configuration_file(tmp_path: Path) -> None:
    (entry, _) = load(tmp_path, WHOLE).values()
    assert ModelEntry.model_validate_json(entry.model_dump_json()) == entry


INVALID = {
    "": "no entries",
    "- a": "no entries",
    "a: b": "entry a: not a list of fields (write 'field: value' below it)",
    "1: {}": "entry 1: invalid name",
    "my model: {}": "entry 'my model': invalid name (use up to 100 letters",
    "'openai:m': {}": "entry 'openai:m': invalid name",
    "'../m': {}": "entry '../m': invalid name",
    "a: {temprature: 1}": "entry a: unknown field 'temprature' (did you mean temperature?",
    "a: {name: b}": "entry a: unknown field 'name' (known: model, base_url",
    f"a: {{api_key: {KEY}}}": "entry a: unknown field 'api_key' (put the key into an environment variable",
    f"a: {{api_key_env: {KEY}}}": "entry a, field api_key_env: not a variable's name that reads like a key's",
    "a: {api_key_env: LABORATORY}": "entry a, field api_key_env: not a variable's name that reads like a key's",
    "a: {model: 7}": "entry a, field model: input should be a valid string (for example model: qwen2.5-coder-7b)",
    "a: {model: 'replay:x.json'}": "entry a, field model: names no model of a server (pass that name itself",
    "a: {model: ''}": "entry a, field model: string should have at least 1 character",
    "a: {base_url: 'ftp://x/v1'}": "entry a, field base_url: not an http or https address (write it as http://",
    "a: {base_url: 'http://[::1/v1'}": "entry a, field base_url: not an http or https address",
    "a: {base_url: 'http://me:pass-word-1@x/v1'}": "entry a, field base_url: has a user, a password or a query",
    "a: {base_url: 'https://x/v1?key=1'}": "entry a, field base_url: has a user, a password or a query",
    "a: {temperature: warm}": "entry a, field temperature: input should be a valid number (for example temperature: 0.2)",
    "a: {temperature: true}": "entry a, field temperature: input should be a valid number",
    "a: {temperature: .nan}": "entry a, field temperature: input should be",
    "a: {window: '32768'}": "entry a, field window: input should be a valid integer (for example window: 131072)",
    "a: {window: 10}": "entry a, field window: input should be greater than or equal to 1000",
    "a: {read_timeout_s: 0}": "entry a, field read_timeout_s: input should be greater than 0",
    "a: {notes_timeout_s: soon}": "entry a, field notes_timeout_s: input should be a valid number",
    "a: {model_timeout_s: .inf}": "entry a, field model_timeout_s: input should be less than or equal to 604800",
    "a: {max_output_tokens: 0}": "entry a, field max_output_tokens: input should be greater than or equal to 1",
    "a: {price: 3}": "entry a, field price: input should be a valid dictionary",
    "a: {price: {input: 1}}": "entry a, field price.output: field required (for example price: {input: 0.25",
    "a: {price: {input: -1, output: 1}}": "entry a, field price.input: input should be greater than or equal to 0",
    "a: {price: {input: 1, output: .inf}}": "entry a, field price.output: input should be a finite number",
    "a: {price: {in: 1, output: 1}}": "entry a, field price.in: unknown (known: input, output, cached)",
    "a: {price: {input: 1, output: 1, cache: 1}}": "entry a, field price.cache: unknown (known: input, output, cached)",
    "a: {extra_body: [1]}": "entry a, field extra_body: input should be a valid",
    "a: {extra_body: {messages: []}}": "entry a, field extra_body: messages is set by the runtime (remove it)",
    "a: {extra_body: {x: 2024-01-01}}": "entry a, field extra_body",
    "a: {extra_body: {x: .inf}}": "entry a, field extra_body: contains an infinite number",
    "a: {extra_body: " + "{x: " * 50 + "1" + "}" * 51: "or more than 20 levels",
    f"a: {{extra_body: {{x: {KEY}}}}}": "entry a, field extra_body: x reads like a secret",
    f"a: {{extra_body: {{x: [1, {{{KEY}: 1}}]}}}}": "entry a, field extra_body: x.[redacted] reads like a secret",
    "a: {extra_body: {x: {auth_token: correct-horse-1}}}": "extra_body: x.auth_token reads like a secret",
    "a: {extra_body: {stop_token: '<|im_end|>'}}": "entry a, field extra_body: stop_token reads like a secret",
    "a: {extra_body: {temperature: 1}}": "extra_body: temperature is set by the runtime (use the field temperature)",
    "a: {extra_body: {max_tokens: 1}}": "extra_body: max_tokens is set by the runtime (use the field max_output_tokens)",
    "a: {extra_body: {n: 2}}": "extra_body: n is set by the runtime (remove it)",
    f"a: {{model: {KEY}}}": "entry a, field model: reads like a key, which the run would store (put the key into",
    f"{KEY}: {{}}": "an entry's name reads like a key, which the run would store (put the key into an environment",
    "a: &x {model: b}\nb: *x": "line 2: not valid YAML: an alias",
    "a: {model: b}\na: {model: c}": "line 2: not valid YAML: 'a' twice",
    "a: {window: 2000, window: 3000}": "line 1: not valid YAML: 'window' twice",
    "a:\n b: [": "line 2: not valid YAML",
    "? [a]\n: b": "line 1: not valid YAML",
    "a: !!python/object/apply:os.system [id]": "line 1: not valid YAML: could not determine a constructor",
    "[" * 3000: "nested too deeply",
    "a: {window: " + "9" * 5000 + "}": "not valid YAML: Exceeds the limit",
    "a: {window: 2001-99-99}": "not valid YAML: month must be in",
    "a: \x00": "not valid YAML",
    b"\xff\xfea": "not UTF-8 text (byte 0",
    b"x" * (1 << 19): "larger than",
}  # fmt: skip


@pytest.mark.parametrize("text", INVALID, ids=lambda text: repr(text[:60]))
def test_an_invalid_file_is_one_line_with_its_place_and_cure(tmp_path: Path, text: str | bytes) -> None:
    with pytest.raises(ModelsFileError) as raised:
        load(tmp_path, text)
    line = str(raised.value)
    assert line.startswith(f"{tmp_path / 'models.yaml'}: ")
    assert INVALID[text] in line
    assert line.endswith(")")
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert len(line) < 400 + len(str(tmp_path))
    assert KEY not in line


@pytest.mark.parametrize("name", ["nowhere.yaml", ".", "/dev/zero"])
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelsFileError, match=r"pass a YAML file with one entry per model"):
        load_models(tmp_path / name)


def test_the_difference_of_two_files_is_named(tmp_path: Path) -> None:
    before = load(tmp_path, WHOLE)
    assert find_entry_difference(before, before) is None
    changed = load(tmp_path, WHOLE.replace("0.2", "0.7"))
    assert find_entry_difference(before, changed) == "qwen: temperature was 0.2, now 0.7"
    assert find_entry_difference(before, {"qwen": before["qwen"]}) == "it has no entry org/gpt-5.1"
    assert find_entry_difference({"qwen": before["qwen"]}, before) is None  # a run keeps only what it uses
    priced = load(tmp_path, WHOLE.replace("cached: 0.1", "cached: 0.2"))
    assert "'cached': 0.2" in str(find_entry_difference(before, priced))


def test_the_example_file_is_valid() -> None:
    found = load_models(Path(__file__).parents[3] / "examples" / "models.yaml")
    assert all(entry.price is not None for entry in found.values())
    assert json.dumps([entry.model_dump(mode="json") for entry in found.values()])
