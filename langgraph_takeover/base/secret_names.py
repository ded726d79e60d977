"""Which settings hold a secret, by their name and value."""

from __future__ import annotations

import re

REDACTED = "[redacted]"
MIN_SECRET_LENGTH = 8

_SECRET_NAME = re.compile(
    r"(?:^|[^A-Z0-9])(?:KEYS?|AUTH(?:ORIZATION)?|PRIVATE|DSN|PASS|PWD|CREDS?"
    r"|[A-Z0-9]*(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|CREDENTIAL|(?:API|ACCESS|SECRET|PRIVATE)KEY)S?)(?:[^A-Z0-9]|$)",
    re.IGNORECASE,
)
# Values that are ordinary words of any program; redacting them would damage the work.
_NOT_A_SECRET = re.compile(
    r"""[A-Za-z]{1,15}                                     # one word
    | [A-Za-z_]+(?:\.[A-Za-z_]+)+                          # a dotted name
    | [-+.,:\d]+                                           # a number, a version, an address
    | (?:~|\.\.?)?/ | (?:~|\.\.?)/\S* | /[A-Z]?[a-z]+(?:/\S*)?   # a path
    | [a-z][a-z0-9+.-]*://[^\s@?]*                         # an address on the net, without user and query""",
    re.VERBOSE,
)
NO_VARIABLE = r"(?![${<%*\[])"
PASSWORD_IN_URL = re.compile(rf"://[^\s/?#:@]*:{NO_VARIABLE}([^\s/?#@]+)@")


def is_secret_name(name: str) -> bool:
    """Whether a setting or variable of that name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def is_secret_value(value: str) -> bool:
    """Whether a secret setting's value is more than a word, a number or a path."""
    return len(value) >= MIN_SECRET_LENGTH and value not in REDACTED and not _NOT_A_SECRET.fullmatch(value)


def is_secret_setting(name: str, value: str) -> bool:
    """Whether a setting's value is a secret: by its name, and because the value is more than a word or a number."""
    return is_secret_name(name) and is_secret_value(value)
