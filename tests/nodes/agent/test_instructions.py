"""The system message announces the limits that the tools enforce."""

from __future__ import annotations

from typing import Any

import pytest

from ...graph.conftest import DONE, RunHarness, native_reply, scripted_model

FINISH = native_reply(("finish", "{}"))


@pytest.mark.parametrize("protocol", ["text", "native"])
@pytest.mark.parametrize(
    ("settings", "seconds", "characters"),
    [
        ({}, "120 seconds", "10,000 characters"),
        ({"command_timeout_s": 7.5, "observation_chars": 12_345}, "7.5 seconds", "12,345 characters"),
    ],
)
def test_limits_are_those_of_the_settings(
    bench: RunHarness, protocol: str, settings: dict[str, Any], seconds: str, characters: str
) -> None:
    model = scripted_model(FINISH if protocol == "native" else DONE)
    bench.run(model, protocol=protocol, **settings)
    text = model.seen[0][0].text
    assert f"A command that runs longer than {seconds} is stopped" in text
    assert f"A result longer than {characters} is shown without its middle" in text
    assert "{" not in text.partition("```json")[0]
