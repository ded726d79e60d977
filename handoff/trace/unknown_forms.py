"""Calls and items of a recording in a form that this version does not know, counted by their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

MAX_FORMS, _MAX_NAME_CHARS, _MAX_SHOWN = 20, 60, 5
OTHER_FORMS = "other forms"
"""Counts what exceeds `MAX_FORMS` different names."""


def count_forms(names: Iterable[str], counts: Mapping[str, int] | None = None) -> dict[str, int]:
    """Add names to the counts: each on one line, shortened, and at most `MAX_FORMS` different ones."""
    return sum_forms([counts or {}, *({name: 1} for name in names)])


def sum_forms(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of several counts, within the limits of `count_forms`."""
    total: Counter[str] = Counter()
    for counts in several:
        for form, count in counts.items():
            name = shorten_form(form)
            total[name if name in total or len(total) < MAX_FORMS else OTHER_FORMS] += count
    return dict(total)


def shorten_form(name: str) -> str:
    """The name of a form as it is counted."""
    text = " ".join(name[: 4 * _MAX_NAME_CHARS].split()).encode("utf-8", "backslashreplace").decode()
    return (text if len(text) <= _MAX_NAME_CHARS else f"{text[: _MAX_NAME_CHARS - 1]}…") or "no name"


def describe_unknown_forms(forms: Mapping[str, int]) -> str:
    """Describe the calls of unknown form in one line; empty without any. The names are data of the recording."""
    number = sum(forms.values())
    if not number:
        return ""
    named = sorted(forms.items(), key=lambda each: -each[1])
    shown = ", ".join(f"{name} ({count})" for name, count in named[:_MAX_SHOWN])
    more = f" and {len(named) - _MAX_SHOWN} more forms" if len(named) > _MAX_SHOWN else ""
    calls = "1 call" if number == 1 else f"{number} calls"
    return f"{calls} in a form that this version does not know: {shown}{more}"
