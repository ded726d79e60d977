"""Detection of secrets in their common encodings, and harmless text that stays."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from langgraph_takeover.base.secret_names import REDACTED
from langgraph_takeover.handoff.text.redaction import redact, redact_known_secrets

from ...random_examples import SHARED_FIXTURES, examples

BODY = "Ab3dEf6hIj9lMn2pQr5tUv8xYz1AbC4eFg7iJk0m"  # forty characters, the length of the longest key
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{(BODY + BODY[:24] + chr(10)) * 4}-----END RSA PRIVATE KEY-----"
JWT = f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.{BODY}"
KEYS = {
    "openai": f"sk-{BODY}",
    "openai project": f"sk-proj-{BODY}-{BODY}_x",
    "anthropic": f"sk-ant-api03-{BODY}-{BODY}AA",
    "github": f"ghp_{BODY[:36]}",
    "github app": f"ghs_{BODY[:36]}",
    "github fine-grained": f"github_pat_{BODY[:22]}_{BODY}",
    "aws": "AKIAIOSFODNN7EXAMPL3",
    "aws temporary": "ASIAIOSFODNN7EXAMPL3",
    "google": f"AIza{BODY[:35]}",
    "slack": f"xoxb-123456789012-{BODY[:24]}",
    "hugging face": f"hf_{BODY[:34]}",
    "gitlab": f"glpat-{BODY[:20]}",
    "pypi": f"pypi-AgEIcHlwaS5vcmc{BODY}{BODY}",
    "npm": f"npm_{BODY[:36]}",
    "stripe": f"sk_live_{BODY[:24]}",
    "stripe restricted": f"rk_live_{BODY[:24]}",
    "json web token": JWT,
    "private key": PEM,
    "private key in json": json.dumps(PEM)[1:-1],
    "private key in numbered lines": "\n".join(
        f"{number:6}\t{line}" for number, line in enumerate(PEM.split("\n"))
    ).lstrip(" 0\t"),
}


@pytest.fixture(autouse=True)
def _no_secrets_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name not in ("PATH", "HOME"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_keys_are_redacted_anywhere(key: str) -> None:
    for before, after in (
        ("", ""),
        ("key: ", "."),
        ('KEY="', '"'),
        ("(", ")\n"),
        ("a\n", "\nb"),
        ("x=", " y"),
    ):
        assert redact(f"{before}{key}{after}") == f"{before}{REDACTED}{after}"
    in_json = json.dumps({"output": f"line\n{key}\n"})
    assert json.loads(redact(in_json)) == {"output": f"line\n{REDACTED}\n"}
    assert redact({"a": [key, 1, None], key: ("b",)}) == {"a": [REDACTED, 1, None], REDACTED: ("b",)}
    assert redact_known_secrets(f"echo {key}") == f"echo {key}"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"Authorization: Bearer {BODY}", "Authorization: Bearer [redacted]"),
        (f'{{"authorization": "bearer {BODY}"}}', '{"authorization": "bearer [redacted]"}'),
        (f"curl -H 'Authorization: Basic {BODY}=='", "curl -H 'Authorization: Basic [redacted]'"),
        (f"Authorization: token {BODY}", "Authorization: token [redacted]"),
        ("postgresql://user:hunter2@host/db", "postgresql://user:[redacted]@host/db"),
        ("redis://:p4ss-w0rd!@host:6379/0 x@y", "redis://:[redacted]@host:6379/0 x@y"),
        ("git clone https://me:x9-y@git.example/a.git", "git clone https://me:[redacted]@git.example/a.git"),
        (PEM[:200], REDACTED),
    ],
)
def test_keys_are_recognized_by_their_context(text: str, left: str) -> None:
    assert redact(text) == left


@pytest.mark.parametrize(
    "text",
    [
        "pip install sk-learn-contrib-lightning-extensions",
        "risk-assessment-of-the-second-generation-2024, task-0123456789abcdef0123",
        "<div class='sk-toggleable__label sk-toggleable__label-arrow sk-estimator-id-1'>",
        "from huggingface_hub import hf_hub_download; hf_hub_download_with_a_very_long_name_of_its_own()",
        "def hf_transformerdecoderlayerwithcrossattention(): ...",
        "the header eyJ, and eyJhbGciOiJIUzI1NiJ9 alone",
        "AKIA, ASIA, AKIAROSPHERE and ASIAPACIFICREGIONSX",
        "ghp_token = None; gho_ = 1; github_pat_pattern = re.compile(x)",
        "npm_config_registry=x npm_lifecycle_event=test",
        "xoxb-style-tokens-are-documented-there",
        'key.startswith("-----BEGIN RSA PRIVATE KEY-----") and key.endswith("-----END RSA PRIVATE KEY-----")',
        'BEGIN, END = "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"',
        "Bearer authentication; bearer {token}; Authorization: Bearer $TOKEN_OF_THE_SERVICE_1",
        "postgresql://user:password@host postgresql://{user}:{password}@{host} http://u:$PASS_1@h",
        "http://localhost:8080/a@b ssh://git@host:22/a.git http://[::1]:80/@x https://a:%(pw)s@h",
        f"sha256:{'0123456789abcdef' * 4} {'a1' * 20}",
    ],
)
def test_ordinary_code_is_unchanged(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "name",
    ["OPENAI_API_KEY", "OTHER_SERVICE_TOKEN", "token", "PGPASSWORD", "DB_PASS", "MYSQL_PWD", "SENTRY_DSN", "AWS_SECRETKEY"],
)  # fmt: skip
def test_secrets_of_the_environment_are_found_by_variable_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "quite-secret 12")
    assert redact("a quite-secret 12b") == redact_known_secrets("a quite-secret 12b") == f"a {REDACTED}b"
    monkeypatch.setenv(name, "changed-now-3")
    assert redact_known_secrets(("quite-secret 12", ["changed-now-3"])) == ("quite-secret 12", [REDACTED])
    monkeypatch.delenv(name)
    assert redact_known_secrets("changed-now-3") == "changed-now-3"


@pytest.mark.parametrize(
    "name", ["KEYBOARD", "GIT_AUTHOR", "TOKENIZERS_MODE", "MONKEY", "SSH_ASKPASS", "PASSAGE"]
)
def test_other_variables_are_no_secrets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "quite-open-12")
    assert redact("quite-open-12") == "quite-open-12"


@pytest.mark.parametrize(
    "value",
    ["short-1", "postgres", "disabled", "4096.00000", "/run/secrets/key", "~/.keys/a1", "./a/b-123", "123456789012",
     "https://idp.example/oauth2/token", "django.contrib.auth.backends.ModelBackend", "10.0.0.1:5432"],
)  # fmt: skip
def test_harmless_values_are_no_secrets_whatever_the_variable_name(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_AUTH_TOKEN", value)
    assert redact(f"use {value} here") == f"use {value} here"


def test_a_password_in_the_url_of_any_variable_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE", "postgresql://me:s3cret%2Fpassword@db/x")
    left = redact_known_secrets("PGHOST=db s3cret/password s3cret%2Fpassword")
    assert left == f"PGHOST=db {REDACTED} {REDACTED}"


def test_explicit_secrets_are_redacted_and_short_ones_are_not() -> None:
    assert redact_known_secrets("none of my-own-key-1", ("my-own-key-1", "none", "")) == f"none of {REDACTED}"


SECRET = "pä\"ss $wo`rd\\ 'x/1+"


def test_a_known_secret_is_found_as_programs_write_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", SECRET)
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    declared = subprocess.run(
        ["bash", "-c", 'MY=$MY_SECRET; declare -p MY'], capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    assert redact_known_secrets(declared) == f'declare -- MY="{REDACTED}"\n'
    for ascii_only in (True, False):
        written = json.dumps({"a": f"<{SECRET}>"}, ensure_ascii=ascii_only)
        assert json.loads(redact_known_secrets(written)) == {"a": f"<{REDACTED}>"}
    assert redact_known_secrets(f"?key={quote(SECRET, safe='')}&") == f"?key={REDACTED}&"
    for before in ("", "u", "us", "user:", "user1:"):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            written = redact_known_secrets(encode(f"{before}{SECRET}{before}".encode()).decode())
            assert REDACTED in written
            # Digits at the ends remain, because they depend on the neighbouring bytes.
            assert len(written) - len(REDACTED) <= 4 * len(before) + 6


SECRETS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=8, max_size=30)


@settings(max_examples=examples(300), suppress_health_check=SHARED_FIXTURES)
@given(secret=SECRETS, around=st.text(max_size=20), key=st.sampled_from(sorted(KEYS.values())))
def test_redaction_is_idempotent_and_leaves_no_known_secret(secret: str, around: str, key: str) -> None:
    text = f"{around}{secret}{around} {key}\n{around}"
    once = redact(text, (secret,))
    assert redact(once, (secret,)) == once
    if redact_known_secrets(secret, (secret,)) != secret:
        assert secret not in once


KEY = "sk-proj-9fK2mQ7x+Z1pL8vB4/nT6wR3yH5cD0jA"
ROOT = Path(__file__).parents[3]


def base64_of(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def make_wrapper(width: int, end: str = "\n") -> Callable[[str], str]:
    return lambda text: end.join(textwrap.wrap(base64_of(text), width))


def each(form: str) -> Callable[[str], str]:
    return lambda text: "".join(form.format(byte) for byte in text.encode())


SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "JSON": lambda text: json.dumps(text)[1:-1],
    "JSON with escaped slashes": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "JSON with escapes for HTML": lambda text: json.dumps(text)[1:-1].replace("+", r"\u002b"),
    "JSON escapes": each(r"\u{:04x}"),
    "JSON escapes in upper case": each(r"\u{:04X}"),
    "URL": lambda text: quote(text, safe=""),
    "URL in lower case": each("%{:02x}"),
    "URL in upper case": each("%{:02X}"),
    "URL with slashes": lambda text: quote(text, safe="/+"),
    "form": quote_plus,
    "base64": base64_of,
    "base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
    "base64 in lines of 76": make_wrapper(76),
    "base64 in lines of CRLF": make_wrapper(64, "\r\n"),
    "base64 in indented lines": make_wrapper(40, "\n    "),
    "base64 in lines within JSON": lambda text: json.dumps(make_wrapper(32)(text))[1:-1],
    "base64 in a URL": lambda text: quote(base64_of(text), safe=""),
    "hex": lambda text: text.encode().hex(),
    "hex in upper case": lambda text: text.encode().hex().upper(),
    "hex with spaces": lambda text: text.encode().hex(" "),
    "hex in lines": lambda text: "\n".join(textwrap.wrap(text.encode().hex(), 60)),
}


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
    secret = "pa~ss?w0rd>X y~9z?Q>" * 3
    assert REDACTED in redact_known_secrets(f"a <{SPELLINGS[spelling](secret)}> b", (secret,))


NEIGHBOURS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=12)
ASCII_SECRETS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=16, max_size=60)


@example(secret="pass%41word%42xyz", before="", after="", spelling="JSON escapes")
@example(secret=r"pass\u0041word\nxyz", before="", after="", spelling="JSON")
@settings(max_examples=examples(300), suppress_health_check=SHARED_FIXTURES)
@given(secret=ASCII_SECRETS, before=NEIGHBOURS, after=NEIGHBOURS, spelling=st.sampled_from(sorted(SPELLINGS)))
def test_any_secret_is_cut_between_any_neighbours(
    secret: str, before: str, after: str, spelling: str
) -> None:
    if redact_known_secrets(secret, (secret,)) == secret:
        return  # a word, a number or a path is no secret
    spell = SPELLINGS[spelling]
    left = redact_known_secrets(spell(before + secret + after), (secret,))
    assert len(left.replace(REDACTED, "")) <= len(spell(before) + spell(after)) + 20


@pytest.mark.parametrize("secret", ["geheim-😀-schlüssel", "Ключ-к-двери-7", "\ud800-torn-secret"])
@pytest.mark.parametrize("spelling", ["plain", "JSON"])
def test_a_secret_beyond_ascii_is_cut(secret: str, spelling: str) -> None:
    assert redact_known_secrets(f"a {SPELLINGS[spelling](secret)} b", (secret,)) == f"a {REDACTED} b"


def test_ordinary_text_keeps_every_character() -> None:
    secrets = (KEY, "correct horse battery staple", "hunter2-hunter2", "p4ssw0rd", "a" * 20)
    for path in (*ROOT.glob("handoff/*.py"), *ROOT.glob("docs/*.md"), *ROOT.glob("evals/reports/pages/*")):
        text = path.read_text()
        assert redact_known_secrets(text, secrets) == text, path
    rng = random.Random(0)
    hexes = (rng.randbytes(50_000).hex(), rng.randbytes(50_000).hex(" "))
    for text in (*hexes, base64_of(str(rng.random()) * 9999)):
        assert redact_known_secrets(text, secrets) == text


def test_text_next_to_a_spelling_stays() -> None:
    text = f"é 50% \\u00e9 \\ud83d\\ude00 {each('%{:02x}')(KEY)} \\u2014 100%41 ü {KEY}"
    left = f"é 50% \\u00e9 \\ud83d\\ude00 {REDACTED} \\u2014 100%41 ü {REDACTED}"
    assert redact_known_secrets(text, (KEY,)) == left


def test_one_secret_among_many_texts_is_cut_in_place() -> None:
    value = {"events": [{"text": f"number {n}", "more": ("x" * 9, None, n)} for n in range(50)]}
    value["events"][7]["text"] = base64_of(f"Bearer {KEY}")
    clean = redact(value, (KEY,))
    assert REDACTED in clean["events"][7]["text"]
    assert clean["events"][:7] + clean["events"][8:] == value["events"][:7] + value["events"][8:]


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "spelling", ["JSON escapes", "URL in upper case", "base64 in lines of 76", "hex with spaces"]
)
def test_a_secret_is_cut_from_a_long_text(spelling: str) -> None:
    around = "\n".join(f'{{"line": "{n} \\t 100%25"}}' for n in range(20_000))
    text = f"{around} {SPELLINGS[spelling](KEY)}\n{around}"
    started = time.process_time()
    left = redact_known_secrets(text, (KEY,))
    assert time.process_time() - started < 3
    assert left.count(REDACTED) == 1
    assert left.startswith(around)
    assert left.endswith(around)


@pytest.mark.parametrize(
    "piece",
    ["%41", r"\u0041", r"\ud83d", "%", "\\", "\n ", "\\n", "a", "Ab1+", KEY, KEY[:-1], base64_of(KEY)],
)
def test_the_cost_is_linear_in_the_length(piece: str) -> None:
    def seconds(length: int) -> float:
        text = (piece * length)[:length]
        started = time.process_time()
        redact_known_secrets(text, (KEY, "another secret 1"))
        return time.process_time() - started

    seconds(1_000)
    assert seconds(400_000) < 3


def test_the_cost_is_not_quadratic_in_the_output() -> None:
    for piece in ("sk-", "xoxb-", "-eyJ", "://a:", "-----BEGIN PRIVATE KEY-----", "sk-a-", "earer "):
        assert redact(piece * 50_000) == piece * 50_000
