"""Detection of secrets in every form, and harmless text that stays."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langgraph_takeover.handoff.text.redaction import REDACTED, redact, redact_known_secrets

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
    assert (
        redact_known_secrets("PGHOST=db s3cret/password s3cret%2Fpassword")
        == f"PGHOST=db {REDACTED} {REDACTED}"
    )


def test_explicit_secrets_are_redacted_and_short_ones_are_not() -> None:
    assert redact_known_secrets("none of my-own-key-1", ("my-own-key-1", "none", "")) == f"none of {REDACTED}"


SECRET = "pä\"ss $wo`rd\\ 'x/1+"


def test_a_known_secret_is_found_in_every_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_cost_is_not_quadratic_in_the_output() -> None:
    for piece in ("sk-", "xoxb-", "-eyJ", "://a:", "-----BEGIN PRIVATE KEY-----", "sk-a-", "earer "):
        assert redact(piece * 50_000) == piece * 50_000
