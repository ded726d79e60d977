"""What the page holds compressed: nothing in it moves a cursor, and it is cut until it fits."""

from __future__ import annotations

import base64
import json
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from langgraph_takeover.evals.reports.html import timelines
from langgraph_takeover.evals.reports.html.chunks import TEXT_LIMITS, TextPool, escape_invisible, pack_chunks
from langgraph_takeover.evals.reports.html.page import MAX_PAGE_BYTES, write_page
from langgraph_takeover.evals.run.results import load_results

from ..laid import load_recorded_traces, write_run


def unpacked(chunk: str) -> dict[str, Any]:
    found = json.loads(zlib.decompress(base64.b64decode(chunk)))
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain\n\ttext, ünïcode, 😀 \\u202e \\", "plain\n\ttext, ünïcode, 😀 \\u202e \\"),
        ("\x1b[1;31mred\x1b[0m \x1b[2J", "red \u241b[2J"),
        ("dos\r\n and \rback", "dos\r\n and \u240dback"),
        ("\x00\x07\x08\x0c", "\u2400\u2407\u2408\u240c"),
        ("\x7f\x9b\u200b\u2028\u202e\u2066\ufeff", "\\u007f\\u009b\\u200b\\u2028\\u202e\\u2066\\ufeff"),
        ("\\\u202e", "\\\\u202e"),
        ("\ud83d \udc00 \ud83d\ude00", "\\ud83d \\udc00 \U0001f600"),
        ("\U000e0041", "\\udb40\\udc41"),
        ("</script><!--", "</script><!--"),
    ],
)
def test_what_is_not_seen_is_shown_and_the_rest_stays(text: str, seen: str) -> None:
    assert escape_invisible(text) == seen
    pool = TextPool()
    body = {"said": text, "text": pool(text)}
    held = unpacked(pack_chunks([pool.build_chunk(body)], 10_000).chunks[0])
    assert held["body"]["said"] == held["strings"][held["body"]["text"]] == seen


def test_equal_texts_are_held_once_and_whole_where_there_is_room() -> None:
    pool = TextPool()
    assert pool("a" * 500) == pool("a" * 500) != pool("b")
    found = pack_chunks([pool.build_chunk({})], 10_000)
    assert found.limit is None
    assert unpacked(found.chunks[0])["strings"] == ["a" * 500, "b"]


def test_texts_are_cut_in_the_middle_until_all_fit_and_roomy_ones_less() -> None:
    noise = random.Random(20260518)
    texts = ["".join(noise.choices("abcdefgh \n", k=5000)) for _ in range(60)]
    chunks = []
    for number in range(0, 60, 2):
        pool = TextPool()
        chunks.append(pool.build_chunk([pool(texts[number]), pool(texts[number + 1], is_extended=True)]))
    found = pack_chunks(chunks, 60_000)
    assert sum(map(len, found.chunks)) <= 60_000
    assert found.limit in TEXT_LIMITS
    for number, chunk in enumerate(found.chunks):
        plain, roomy = unpacked(chunk)["strings"]
        for text, cut, limit in zip(
            texts[2 * number :], (plain, roomy), (found.limit, 4 * found.limit), strict=False
        ):
            head, left, tail = cut
            assert text.startswith(head)
            assert text.endswith(tail)
            assert len(head) + len(tail) == limit
            assert len(head) + left + len(tail) == 5000
    longer = pack_chunks(chunks, 120_000)
    assert longer.limit is not None
    assert longer.limit > found.limit


def test_a_text_beyond_what_is_ever_shown_says_how_much_is_left_out() -> None:
    pool = TextPool()
    pool("x" * 1_000_000)
    found = pack_chunks([pool.build_chunk(None)], 1_000_000)
    head, left, tail = unpacked(found.chunks[0])["strings"][0]
    assert (found.limit, len(head) + len(tail), left) == (
        TEXT_LIMITS[0],
        TEXT_LIMITS[0],
        1_000_000 - TEXT_LIMITS[0],
    )


@pytest.mark.slow
def test_a_study_of_724_takeovers_is_below_five_megabytes(shared: Path, tmp_path: Path) -> None:
    traces = load_recorded_traces(shared)
    results = load_results([write_run(tmp_path / "out", traces, traces, records=181)])
    assert len(results.takeovers) == 724
    write_page(tmp_path / "report.html", results, [], [])
    page = (tmp_path / "report.html").read_text()
    assert MAX_PAGE_BYTES / 2 < len(page.encode()) < MAX_PAGE_BYTES
    assert "were cut in the middle" in page
    _, *parts = [part.partition("<")[0] for part in page.split('<script type="text/plain" id="')[1:]]
    stories = [unpacked(part.partition(">")[2]) for part in parts]
    runs = [
        run for each in stories for point in each["body"]["points"].values() for run in point["runs"].values()
    ]
    assert len(runs) == 724
    assert sum(len(run["events"]) for run in runs) == sum(row["events"] for row in results.takeovers)


@pytest.mark.slow
def test_several_processes_make_what_one_makes(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = load_recorded_traces(shared)[:6]
    results = load_results([write_run(tmp_path / "out", traces, traces, records=10)])
    alone = timelines.build_chunks(results)
    monkeypatch.setattr(timelines, "_PARALLEL_THRESHOLD", 1)
    assert timelines.build_chunks(results) == alone
