"""The text of a model's statement: its sentences, the paths in it, and whether it says anything."""

from __future__ import annotations

import re

from langgraph_takeover.handoff.records.record import Claim
from langgraph_takeover.handoff.text.note_fields import NONE_OBSERVED, UNKNOWN

PATH = re.compile(
    r"(?<![\w/.@-])(?:~?/|\./|\.\./)?(?:[\w.+-]+/)+[\w.+-]*\w|"
    r"(?<![\w/.@-])[\w-]+\.(?:py|pyi|pyx|js|jsx|ts|tsx|go|rs|java|kt|c|h|cc|cpp|hpp|rb|php|cs|swift|sh|md|rst|txt|"
    r"toml|cfg|ini|ya?ml|json|html|css|sql)\b(?!\()"
)
_MAX_SENTENCE_CHARS, _MAX_TEXT_CHARS = 2_000, 20_000
_SENTENCE_END = re.compile(r"(?<=[.;!?])\s+")
_EMPTY_CLAIM = re.compile(rf"^\W*(?:{UNKNOWN}|{NONE_OBSERVED}|none|n/?a)\W*$", re.IGNORECASE)
_INFERENCE = re.compile(r"\W*inferr?ed\b", re.IGNORECASE)


def split_sentences(text: str) -> list[str]:
    """Split a text at the ends of its sentences and at semicolons; of a very long sentence the start is checked."""
    return [sentence[:_MAX_SENTENCE_CHARS] for sentence in _SENTENCE_END.split(text[:_MAX_TEXT_CHARS])]


def is_empty_claim(claim: Claim) -> bool:
    """Whether it only says that there is nothing to say."""
    return bool(_EMPTY_CLAIM.match(claim.text))


def is_inference(claim: Claim) -> bool:
    """Whether the model marked it as an inference."""
    return bool(_INFERENCE.match(claim.text))
