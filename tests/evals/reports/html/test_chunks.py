"""Compressed chunks of the page: invisible characters are escaped, and texts are cut to fit."""

from __future__ import annotations

import base64
import json
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from benchmarks.synthetic_runs import write_run
from langgraph_takeover.evals.reports.html import timelines
from langgraph_takeover.evals.reports.html.chunks import TEXT_LIMITS, TextPool, escape_for_page, pack_chunks
from langgraph_takeover.evals.reports.html.page import MAX_PAGE_BYTES, write_page
from langgraph_takeover.evals.run.results import load_results
from langgraph_takeover.handoff.readers import read_traces
from langgraph_takeover.handoff.trace.events import Trace


def load_recorded_traces(shared: Path) -> list[Trace]:
    """Recorded runs of real agents."""
    paths = sorted((shared / "trajectories").glob("mini-*/*.traj.json"))
    return [trace for path in paths if isinstance(trace := next(iter(read_traces(path))), Trace)]


def unpack(chunk: str) -> dict[str, Any]:
    packed = json.loads(zlib.decompress(base64.b64decode(chunk)))
    assert isinstance(packed, dict)
    return packed


@pytest.mark.parametrize(
    ("text", "escaped"),
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
def test_invisible_characters_are_escaped(text: str, escaped: str) -> None:
    assert escape_for_page(text) == escaped
    pool = TextPool()
    body = {"inline": text, "text": pool(text)}
    content = unpack(pack_chunks([pool.build_chunk(body)], 10_000).chunks[0])
    assert content["body"]["inline"] == content["strings"][content["body"]["text"]] == escaped


def test_equal_texts_are_stored_once_and_in_full_if_they_fit() -> None:
    pool = TextPool()
    assert pool("a" * 500) == pool("a" * 500) != pool("b")
    packed = pack_chunks([pool.build_chunk({})], 10_000)
    assert packed.limit is None
    assert unpack(packed.chunks[0])["strings"] == ["a" * 500, "b"]


def test_texts_are_cut_in_the_middle_until_all_fit() -> None:
    rng = random.Random(20260518)
    texts = ["".join(rng.choices("abcdefgh \n", k=5000)) for _ in range(60)]
    chunks = []
    for number in range(0, 60, 2):
        pool = TextPool()
        chunks.append(pool.build_chunk([pool(texts[number]), pool(texts[number + 1], is_extended=True)]))
    packed = pack_chunks(chunks, 60_000)
    assert sum(map(len, packed.chunks)) <= 60_000
    assert packed.limit in TEXT_LIMITS
    for number, chunk in enumerate(packed.chunks):
        plain, extended = unpack(chunk)["strings"]
        for text, cut, limit in zip(
            texts[2 * number :], (plain, extended), (packed.limit, 4 * packed.limit), strict=False
        ):
            head, omitted, tail = cut
            assert text.startswith(head)
            assert text.endswith(tail)
            assert len(head) + len(tail) == limit
            assert len(head) + omitted + len(tail) == 5000
    larger = pack_chunks(chunks, 120_000)
    assert larger.limit is not None
    assert larger.limit > packed.limit


def test_cut_texts_state_the_number_of_omitted_characters() -> None:
    pool = TextPool()
    pool("x" * 1_000_000)
    packed = pack_chunks([pool.build_chunk(None)], 1_000_000)
    head, omitted, tail = unpack(packed.chunks[0])["strings"][0]
    assert (packed.limit, len(head) + len(tail), omitted) == (
        TEXT_LIMITS[0],
        TEXT_LIMITS[0],
        1_000_000 - TEXT_LIMITS[0],
    )


@pytest.mark.slow
def test_a_page_of_724_takeovers_is_below_five_megabytes(real_data: Path, tmp_path: Path) -> None:
    traces = load_recorded_traces(real_data)
    results = load_results([write_run(tmp_path / "out", traces, traces, records=181)])
    assert len(results.takeovers) == 724
    write_page(tmp_path / "report.html", results, [], [])
    page = (tmp_path / "report.html").read_text()
    assert MAX_PAGE_BYTES / 2 < len(page.encode()) < MAX_PAGE_BYTES
    assert "are cut in the middle" in page
    _, *chunks = [chunk.partition("<")[0] for chunk in page.split('<script type="text/plain" id="')[1:]]
    details = [unpack(chunk.partition(">")[2]) for chunk in chunks]
    runs = [
        run for each in details for point in each["body"]["points"].values() for run in point["runs"].values()
    ]
    assert len(runs) == 724
    assert sum(len(run["events"]) for run in runs) == sum(row.events or 0 for row in results.takeovers)


@pytest.mark.slow
def test_several_processes_build_the_same_chunks_as_one(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = load_recorded_traces(real_data)[:6]
    results = load_results([write_run(tmp_path / "out", traces, traces, records=10)])
    by_one_process = timelines.build_chunks(results)
    monkeypatch.setattr(timelines, "_PARALLEL_THRESHOLD", 1)
    assert timelines.build_chunks(results) == by_one_process
