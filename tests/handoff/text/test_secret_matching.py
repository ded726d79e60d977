"""A known secret is found in every spelling, and ordinary text keeps every character."""

from __future__ import annotations

import base64
import codecs
import html
import json
import random
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from langgraph_takeover.handoff.text.redaction import REDACTED, redact, redact_known_secrets

KEY = "sk-proj-9fK2mQ7x+Z1pL8vB4/nT6wR3yH5cD0jA"
ROOT = Path(__file__).parents[3]


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def base64_for_urls(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def make_wrapper(width: int, end: str = "\n") -> Callable[[str], str]:
    return lambda text: end.join(textwrap.wrap(base64_of(text), width))


def number_lines(text: str) -> str:
    lines = textwrap.wrap(base64_of(text), 64)
    return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(lines, 1))


def behind(prefix: str, width: int = 60) -> Callable[[str], str]:
    """Wrapped base64, each line behind a prefix, which may contain the line's number."""
    return lambda text: "".join(
        prefix.format(number) + line + "\n"
        for number, line in enumerate(textwrap.wrap(base64_of(text), width), 1)
    )


def each(form: str) -> Callable[[str], str]:
    return lambda text: "".join(form.format(ord(character)) for character in text)


def hexadecimal(separator: str) -> Callable[[str], str]:
    return lambda text: text.encode().hex(separator) if separator else text.encode().hex()


LINE_ENDS = (r"\n", r"\r\n", r"\t", r"\x0a", r"\u000a", "%0A", "%0d%0a", "&#10;", "&#xA;", r"\012")
PREFIXES = ("+", "-", "- ", "// ", "//", "# ", " * ", "> ", "+// ", "{}:", "f.py:{}:", "pkg/a-1.py-{}-")
SPELLINGS: dict[str, Callable[[str], str]] = {
    "base64": base64_of,
    "base64 for URLs": base64_for_urls,
    "base64 in lines of 76": make_wrapper(76),
    "base64 in lines of 20": make_wrapper(20),
    "base64 in lines of CRLF": make_wrapper(64, "\r\n"),
    "base64 in indented lines": make_wrapper(40, "\n    "),
    "base64 in quoted lines": make_wrapper(32, '"\n  "'),
    "base64 in lines within JSON": lambda text: json.dumps(make_wrapper(32)(text))[1:-1],
    "base64 in lines of CRLF within JSON": lambda text: json.dumps(make_wrapper(25, "\r\n")(text))[1:-1],
    "base64 in lines within JSON, twice": lambda text: json.dumps(json.dumps(make_wrapper(25)(text))[1:-1])[
        1:-1
    ],
    **{f"base64 in lines ended by {end}": make_wrapper(25, end) for end in LINE_ENDS},
    **{f"base64 in lines behind {prefix}": behind(prefix) for prefix in PREFIXES},
    "base64 in short lines of a patch": behind("+", 20),
    "base64 in a patch within JSON": lambda text: json.dumps(behind("+", 24)(text))[1:-1],
    "hex in a patch": lambda text: "\n+".join(textwrap.wrap(text.encode().hex(), 24)),
    "base64 in numbered lines": number_lines,
    "base64 in a URL": lambda text: quote(base64_of(text), safe=""),
    "base64 twice": lambda text: base64_of(base64_of(text)),
    "base64 for URLs twice": lambda text: base64_for_urls(base64_for_urls(text)),
    "base64 of base64 for URLs": lambda text: base64_of(base64_for_urls(text)),
    "hex of base64 for URLs": lambda text: base64_for_urls(text).encode().hex(),
    "base64 of hex in upper case": lambda text: base64_of(text.encode().hex().upper()),
    "hex of hex in upper case": lambda text: text.encode().hex().upper().encode().hex(),
    "UTF-16": lambda text: "\0".join(text),
    "UTF-16 within JSON": lambda text: json.dumps("\0".join(text))[1:-1],
    "UTF-16 as Python shows it": lambda text: repr(text.encode("utf-16-be")),
    "UTF-16 in a URL": lambda text: quote("\0".join(text), safe=""),
    "base64 of hex": lambda text: base64_of(text.encode().hex()),
    "base64 of UTF-16": lambda text: base64.b64encode(text.encode("utf-16-le")).decode(),
    "base64 of UTF-16, big endian": lambda text: base64.b64encode(text.encode("utf-16-be")).decode(),
    "base64 backwards": lambda text: base64_of(text[::-1]),
    "hex of base64": lambda text: base64_of(text).encode().hex(),
    "base32": lambda text: base64.b32encode(text.encode()).decode(),
    "hex": hexadecimal(""),
    "hex in upper case": lambda text: text.encode().hex().upper(),
    "hex with colons": hexadecimal(":"),
    "hex with spaces": hexadecimal(" "),
    "hex with hyphens": hexadecimal("-"),
    "hex of UTF-16": lambda text: text.encode("utf-16-le").hex(" "),
    "C array": lambda text: ", ".join(f"0x{byte:02X}" for byte in text.encode()),
    "list of bytes": lambda text: str(list(text.encode())),
    "hex escapes": each(r"\x{:02x}"),
    "hex escapes within JSON": lambda text: json.dumps(each(r"\x{:02x}")(text))[1:-1],
    "octal escapes": each(r"\{:03o}"),
    "JSON escapes": each(r"\u{:04x}"),
    "JSON escapes in upper case": each(r"\u{:04X}"),
    "JSON escapes within JSON": lambda text: json.dumps(each(r"\u{:04x}")(text))[1:-1],
    "long escapes": each(r"\U{:08x}"),
    "escapes in braces": each(r"\u{{{:x}}}"),
    "percent": lambda text: quote(text, safe=""),
    "percent, all of it": each("%{:02X}"),
    "percent, all of it in lower case": each("%{:02x}"),
    "percent, as old browsers escape": each("%u{:04x}"),
    "percent twice": lambda text: quote(each("%{:02X}")(text), safe=""),
    "decimal entities": each("&#{};"),
    "hex entities": each("&#x{:X};"),
    "named entities": lambda text: html.escape(text).replace("+", "&plus;").replace("/", "&sol;"),
    "backwards": lambda text: text[::-1],
    "ROT13": lambda text: codecs.encode(text, "rot13"),
}


@pytest.fixture(autouse=True)
def _no_secrets_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {})


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(
    ("before", "after"), [("", ""), ("Bearer ", ""), ("x", "y"), ("me:", "@host"), ("abcd", "efgh, and more")]
)
def test_a_known_secret_is_cut_from_every_spelling(spelling: str, before: str, after: str) -> None:
    spell = SPELLINGS[spelling]
    for text in (spell(before + KEY + after), f"sent: <{spell(before + KEY + after)}>\nNothing else."):
        left = redact_known_secrets(text, (KEY,))
        assert REDACTED in left
        beside = len(spell(before) + spell(after)) + len(text) - len(spell(before + KEY + after))
        assert len(left.replace(REDACTED, "")) <= beside + 20, left


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_secret_of_any_characters_is_cut(spelling: str) -> None:
    secret = "pa~ss?w0rd>Xy~9z?Q>" * 3
    assert REDACTED in redact_known_secrets(f"a <{SPELLINGS[spelling](secret)}> b", (secret,))


@pytest.mark.parametrize("prefix", [*PREFIXES, "{:6}\t"])
@pytest.mark.parametrize("key", [KEY, KEY * 4, KEY[:24]], ids=len)
def test_a_key_is_cut_wherever_the_lines_end(prefix: str, key: str) -> None:
    for before in range(80):
        text = behind(prefix, 76)(f"{'x' * before}{key} and more")
        for shown in (text, json.dumps(text)):
            assert REDACTED in redact_known_secrets(shown, (key,)), before


TEXTS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=12)
SECRETS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=16, max_size=60)


FREQUENT = (
    "base64", "base64 for URLs", "base64 twice", "base64 in lines of 20", "hex", "percent, all of it", "JSON escapes",
)  # fmt: skip


@example(secret="pass%41word%42xyz", before="", after="", spelling="JSON escapes")
@given(secret=SECRETS, before=TEXTS, after=TEXTS, spelling=st.sampled_from(FREQUENT))
def test_any_secret_is_cut_between_any_neighbours(
    secret: str, before: str, after: str, spelling: str
) -> None:
    if redact_known_secrets(secret, (secret,)) == secret:
        return  # a word, a number or a path is no secret
    spell = SPELLINGS[spelling]
    left = redact_known_secrets(spell(before + secret + after), (secret,))
    assert len(left.replace(REDACTED, "")) <= len(spell(before) + spell(after)) + 20


@given(st.data())
def test_any_mixture_of_escapes_is_read(data: st.DataObject) -> None:
    forms = ["{0}", "%{1:02X}", "%{1:02x}", r"\u{1:04x}", r"\x{1:02X}", r"\{1:03o}", "&#{1};", "&#x{1:x};"]
    text = "".join(data.draw(st.sampled_from(forms)).format(letter, ord(letter)) for letter in KEY)
    assert redact_known_secrets(f"a {text} b", (KEY,)) == f"a {REDACTED} b"


def test_ordinary_text_keeps_every_character() -> None:
    secrets = (KEY, "correct horse battery staple", "hunter2-hunter2", "p4ssw0rd", "a" * 20)
    for path in (*ROOT.glob("handoff/*.py"), *ROOT.glob("docs/*.md"), *ROOT.glob("evals/reports/pages/*")):
        text = path.read_text()
        assert redact_known_secrets(text, secrets) == text, path
    rng = random.Random(0)
    for text in (
        rng.randbytes(50_000).hex(),
        rng.randbytes(50_000).hex(" "),
        base64_of(str(rng.random()) * 9999),
    ):
        assert redact_known_secrets(text, secrets) == text


def test_text_next_to_a_spelling_stays() -> None:
    text = f"é 50% \\u00e9 &amp; {each('%{:02x}')(KEY)} &eacute; \\u2014 100%41 ü {KEY}"
    assert (
        redact_known_secrets(text, (KEY,))
        == f"é 50% \\u00e9 &amp; {REDACTED} &eacute; \\u2014 100%41 ü {REDACTED}"
    )


def test_one_secret_among_many_texts_is_cut_in_place() -> None:
    value = {"events": [{"text": f"number {n}", "more": ("x" * 9, None, n)} for n in range(50)]}
    value["events"][7]["text"] = base64_of(f"Bearer {KEY}")
    clean = redact(value, (KEY,))
    assert REDACTED in clean["events"][7]["text"]
    assert clean["events"][:7] + clean["events"][8:] == value["events"][:7] + value["events"][8:]


@pytest.mark.parametrize(
    "piece",
    [
        "%41",
        r"\u0041",
        "&#65;",
        "&",
        "%",
        "\\",
        "\n1\t",
        "\n ",
        "\n1",
        "\\n",
        "a",
        "Ab1+",
        KEY,
        KEY[:-1],
        base64_of(KEY),
        f"\n+// {base64_of(KEY)}",
        f"\n{'a-' * 200}{KEY}",
        "\\n" + base64_of(KEY),
    ],
)
def test_the_cost_is_not_quadratic_in_the_length(piece: str) -> None:
    def seconds(length: int) -> float:
        text = (piece * length)[:length]
        started = time.process_time()
        redact_known_secrets(text, (KEY, "another secret 1"))
        return time.process_time() - started

    seconds(1_000)
    assert seconds(400_000) < 3
