"""The page, opened from disk in a real browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

from benchmarks.synthetic_runs import write_run
from langgraph_takeover.evals.reports.html.page import MAX_PAGE_BYTES, write_page
from langgraph_takeover.evals.reports.plots.style import Picture
from langgraph_takeover.evals.run.measures.rediscovery import classify_events
from langgraph_takeover.evals.run.results import Results, load_results
from langgraph_takeover.handoff.trace.events import Event, FileRead, Trace
from langgraph_takeover.handoff.views import find_view
from langgraph_takeover.sandbox.interface import FileChange

from ...run.measures.test_rediscovery import EDIT, NEW, OLD, READ, steps
from ..browser import launch_chromium, open_page

HOSTILE = (
    "</script><script>hacked = 1</script><!--<img src=x onerror='hacked = 1'><svg onload='hacked = 1'>"
    '" onfocus="hacked = 1" autofocus x="{{ 7 * 7 }}'
)
INVISIBLE = "a\u2028b\ud800c\u202ed\x00e\x1b[31mf\x1b[2Jg\u200bh"
ESCAPED = "a\\u2028b\\ud800c\\u202ed\u2400ef\u241b[2Jg\\u200bh"


class Table(NamedTuple):
    number: int
    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | float | None, ...], ...]
    notes: tuple[str, ...] = ()


TABLE = Table(
    1,
    "main",
    "Results by view",
    ("successor", "view", "solved rate", "median events"),
    (
        ("openai:successor", "repository", 0.5, 21),
        ("openai:successor", "trace", None, 9),
        ("openai:successor", "summary", 0.75, 1000.5),
    ),
    ("No correction.",),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launch_chromium() as chromium:
        yield chromium


def trace(name: str, events: tuple[Event, ...], task: str = "Fix it.") -> Trace:
    return Trace(id=name, format="takeover", events=events, base_directories=("src",), task=task)


OTHER = FileRead(path="src/b.py", sha256=NEW)
PREDECESSOR = steps(
    {"command": "cat src/a.py", "reads": [READ], "text": "def one(): ..."},
    {"command": "grep -rn foo src", "text": "src/a.py: foo"},
    {"command": "ls -l", "text": "src"},
    {"command": "sed -i s/a/b/ src/a.py", "changes": [EDIT], "tree_after": "edited"},
    {
        "command": "python -m pytest -q",
        "tree": "edited",
        "exit_code": 1,
        "text": "1 failed, 2 passed in 0.1s",
    },
)
SUCCESSOR_STEPS: tuple[dict[str, Any], ...] = (
    {"command": "cat src/a.py", "reads": [READ], "text": "def one(): ..."},
    {"command": "grep -rn foo src", "text": "src/a.py: foo"},
    {"command": "ls -l", "text": "src"},
    {"command": "cat src/b.py", "reads": [OTHER], "text": "a file that is new to the run"},
    {"command": "python -m pytest -q", "tree": "edited", "exit_code": 1, "text": "1 failed, 2 passed in 0.1s"},
    {
        "command": "sed -i s/b/c/ src/a.py",
        "changes": [FileChange(path="src/a.py", before=NEW, after="2" * 64)],
        "tree": "edited",
        "tree_after": "mended",
    },
    {"command": "python -m pytest -q", "tree": "mended", "text": "3 passed in 0.1s"},
    {"command": "rm -rf /", "refused": True, "tree": "mended", "text": "no"},
)  # fmt: skip
SUCCESSOR = steps(*SUCCESSOR_STEPS)
PATCH = "diff --git a/src/a.py b/src/a.py\n--- a/src/a.py\n+++ b/src/a.py\n@@ -1 +1 @@\n-a\n+c\n"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    out = tmp_path_factory.mktemp("synthetic") / "out"
    write_run(
        out,
        [trace("mend", PREDECESSOR)],
        [trace("one", SUCCESSOR), trace("two", steps(*SUCCESSOR_STEPS[3:]))],
        records=4,
        patch=PATCH,
    )
    return load_results([out])


@pytest.fixture(scope="module")
def page_file(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("page")
    image = (
        b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><script>parent.hacked = 1</script></svg>'
    )
    picture = Picture("effort", "Events by view", Path("p.svg"), Path("p.png"), "svg+xml", image)
    write_page(directory / "report.html", results, [TABLE], [picture])
    return directory / "report.html"


def texts(page: Page, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


def address(results: Results, number: int = 0) -> str:
    row = results.takeovers[number]
    return f"#point={row.record_id}&run={row.view}/{row.successor}/{row.repeat}"


def test_the_page_opens_from_disk_and_shows_the_run(browser: Browser, page_file: Path) -> None:
    with open_page(browser, page_file) as (page, _, _):
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert "16" in texts(page, ".figures b")
        assert page.locator("#picture-effort img").evaluate("image => image.naturalWidth > 0")
        assert page.locator("#rows tbody tr").count() == 16
        assert page.locator("#matrix tbody tr").count() == 4
        page.get_by_text("Settings of run 1a49e000").click()
        expect(page.get_by_text("docker", exact=True)).to_be_visible()


@pytest.mark.slow
def test_columns_sort_in_both_directions_with_unknown_values_last(browser: Browser, page_file: Path) -> None:
    with open_page(browser, page_file) as (page, _, _):
        table = "#table-main tbody td:nth-child(3)"
        button = page.locator("#table-main").get_by_role("button", name="solved rate")
        button.click()
        assert texts(page, table) == ["0.500", "0.750", "–"]
        button.press("Enter")
        assert texts(page, table) == ["0.750", "0.500", "–"]
        assert page.locator("#table-main th[aria-sort]").get_attribute("aria-sort") == "descending"
        page.locator("#table-main").get_by_role("button", name="median events").click()
        assert texts(page, "#table-main tbody td:nth-child(4)") == ["9", "21", "1,000.5"]


@pytest.mark.slow
def test_filters_apply_to_every_table_with_the_column(browser: Browser, page_file: Path) -> None:
    visible_rows = "#rows tbody tr:not([hidden])"
    with open_page(browser, page_file) as (page, _, _):
        page.get_by_label("view", exact=True).select_option("trace")
        assert page.locator(visible_rows).count() == 4
        assert texts(page, "#table-main tbody tr:not([hidden]) td:nth-child(2)") == ["trace"]
        page.get_by_label("point", exact=True).select_option("first_validation")
        assert page.locator(visible_rows).count() == 2
        assert page.locator("#count").inner_text() == "2 of 16 takeovers"
        page.keyboard.press("/")
        page.keyboard.type("mend-1")
        assert page.locator(visible_rows).count() == 1
        assert page.locator("#matrix tbody tr:not([hidden])").count() == 1
        page.get_by_role("button", name="clear").click()
        expect(page.locator(visible_rows)).to_have_count(16)
        page.get_by_role("combobox", name="solved").select_option("no")
        expected = sum(not row["resolved"] for row in load_rows(page))
        assert page.locator(visible_rows).count() == expected


def load_rows(page: Page) -> list[dict[str, Any]]:
    """The rows of the index in the page."""
    rows = page.evaluate(
        """async () => {
          const text = document.getElementById("index").textContent;
          const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
          const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
          return JSON.parse(await new Response(stream).text()).body.takeovers;
        }"""
    )
    assert isinstance(rows, list)
    return rows


@pytest.mark.slow
def test_every_event_is_a_mark_of_its_measured_class(
    browser: Browser, page_file: Path, results: Results
) -> None:
    kinds = set()
    for number, row in enumerate(results.takeovers):
        record, successor_trace = results.load_record(row), results.load_trace(row)
        assert record is not None
        assert successor_trace is not None
        measured = [f"kind-{kind or 'new'}" for kind in classify_events(record, successor_trace.events)]
        with open_page(browser, page_file, address(results, number)) as (page, _, _):
            marks = page.locator(".timeline.chosen .mark")
            classes = marks.evaluate_all("all => all.map((mark) => [...mark.classList])")
            predecessor_marks = page.locator(".timeline.before .mark").count()
        assert [next(name for name in each if name.startswith("kind-")) for each in classes] == measured
        assert predecessor_marks == record.point.event_index + 1
        kinds |= set(measured)
    assert kinds == {"kind-new", "kind-read", "kind-search", "kind-command", "kind-verification"}


@pytest.mark.slow
def test_marks_show_edits_results_and_refusals(browser: Browser, page_file: Path, results: Results) -> None:
    longest = max(range(len(results.takeovers)), key=lambda number: results.takeovers[number].events or 0)
    with open_page(browser, page_file, address(results, longest)) as (page, _, _):
        timeline = page.locator(".timeline.chosen")
        assert timeline.locator(".is-edit").count() == 1
        assert timeline.locator(".is-failed").inner_text() == "✗"
        assert timeline.locator(".is-passed").inner_text() == "✓"
        assert timeline.locator(".is-refused").count() == 1
        assert page.locator(".timeline.before .is-edit").count() == 1


@pytest.mark.slow
def test_kinds_differ_in_color_and_shape(browser: Browser, page_file: Path) -> None:
    read_styles = """all => all.map((mark) => {
      const style = getComputedStyle(mark, "::before");
      return [style.backgroundColor, style.backgroundImage, style.clipPath, style.borderRadius, style.width, style.height].join();
    })"""
    with open_page(browser, page_file, "#point=mend-0.first_source_edit") as (page, _, _):
        styles = page.locator(".legend .is-action:not(.is-refused, .is-parallel)").evaluate_all(read_styles)
        shapes = {style.partition(")")[2] for style in styles}
    assert len(styles) == len(set(styles)) == len(shapes) == 5


@pytest.mark.slow
def test_a_click_opens_an_event(browser: Browser, page_file: Path, results: Results) -> None:
    number = next(
        n
        for n, row in enumerate(results.takeovers)
        if row.events == len(SUCCESSOR) and row.point == "first_validation"
    )
    with open_page(browser, page_file, address(results, number)) as (page, _, _):
        page.locator(".timeline.chosen [data-event='9']").click()
        panel = page.locator("#reader-panel")
        expect(panel.locator("pre")).to_have_text("1 failed, 2 passed in 0.1s")
        assert {"exit code\n1", "class\nverification (not debt)"} <= set(
            texts(page, "#reader-panel .facts div")
        )
        assert "event=9" in page.url
        url = page.url
        page.get_by_role("tab", name="Final diff").click()
        assert [line.strip() for line in texts(page, ".diff .plus")] == ["+c"]
        assert page.locator(".diff .minus").count() == 1
    with open_page(browser, page_file, url[url.index("#") :]) as (page, _, _):
        expect(page.locator("#reader-panel pre")).to_have_text("1 failed, 2 passed in 0.1s")
        assert page.locator("[aria-selected='true'].mark").get_attribute("data-event") == "9"


@pytest.mark.slow
def test_a_takeover_shows_the_messages_of_its_view(
    browser: Browser, page_file: Path, results: Results
) -> None:
    for number in range(4):
        row = results.takeovers[number]
        record = results.load_record(row)
        assert record is not None
        full_view = "".join(message.text for message in find_view(row.view)(record))
        with open_page(browser, page_file, address(results, number)) as (page, _, _):
            texts_shown = page.locator(".message pre").evaluate_all(
                "all => all.map((pre) => pre.textContent)"
            )
            left = texts(page, ".message .cut")
        if row.view == "trace":
            assert full_view.startswith("".join(texts_shown[:2])[:-1])
            assert full_view.endswith(texts_shown[-1])
            last = record.point.event_index
            assert left == [f"… events e2 to e{last}: see the predecessor's timeline …"]
        else:
            assert "".join(texts_shown) == full_view


@pytest.mark.slow
def test_the_page_works_with_the_keyboard_alone(browser: Browser, page_file: Path) -> None:
    with open_page(browser, page_file) as (page, _, _):
        page.locator("#matrix a").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_selector(".timelines")
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.locator(".mark:focus").count():
                break
        mark = page.locator(".mark:focus")
        assert mark.get_attribute("aria-selected") == "true"
        assert mark.evaluate("mark => getComputedStyle(mark).outlineStyle") == "solid"
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        assert page.locator(".mark:focus").get_attribute("data-event") == "1"
        expect(page.locator("#reader-panel pre")).to_have_text("def one(): ...")
        page.keyboard.press("ArrowDown")
        assert page.locator(".timeline.chosen").get_attribute("data-timeline") == "1"
        page.keyboard.press("End")
        last = page.locator(".timeline.chosen .mark").count() - 1
        assert page.locator(".mark:focus").get_attribute("data-event") == str(last)
        page.keyboard.press("Enter")
        assert page.locator("#reader-panel:focus").count() == 1
        page.keyboard.press("Escape")
        assert page.locator(".mark:focus").get_attribute("data-event") == str(last)
        page.keyboard.press("Escape")
        expect(page.locator("#all")).to_be_visible()
        page.keyboard.press("/")
        assert page.locator("input:focus").get_attribute("name") == "words"


@pytest.mark.slow
def test_elements_have_accessible_roles_and_names(browser: Browser, page_file: Path) -> None:
    with open_page(browser, page_file, "#point=mend-0.first_validation") as (page, _, _):
        grid = page.get_by_role("grid")
        assert grid.get_by_role("row").count() == 5
        cell = grid.get_by_role("gridcell", name=re.compile("event 9; observation, shell; exit code 1; test"))
        assert cell.first.is_visible()
        assert page.locator(".mark[tabindex='0']").count() == 1
        unnamed = (
            "all => all.filter((one) => !(one.getAttribute('aria-label') ?? one.textContent).trim()).length"
        )
        assert page.locator("button, a, [role=gridcell], [role=region]").evaluate_all(unnamed) == 0


@pytest.mark.slow
def test_the_theme_follows_the_system_or_the_button(browser: Browser, page_file: Path) -> None:
    read_background = "() => getComputedStyle(document.documentElement).backgroundColor"
    with open_page(browser, page_file, color_scheme="light") as (page, _, _):
        light = page.evaluate(read_background)
        page.locator("#theme").click()
        page.locator("#theme").click()
        dark = page.evaluate(read_background)
    with open_page(browser, page_file, color_scheme="dark") as (page, _, _):
        assert page.evaluate(read_background) == dark != light
        page.locator("#theme").click()
        assert page.evaluate(read_background) == light


@pytest.mark.slow
def test_a_point_can_be_printed(browser: Browser, page_file: Path) -> None:
    with open_page(browser, page_file, "#point=mend-0.first_validation", color_scheme="dark") as (page, _, _):
        page.emulate_media(media="print", color_scheme="dark")
        assert page.locator(".bar").is_hidden()
        assert page.locator(".timelines").is_visible()
        assert page.evaluate("() => getComputedStyle(document.body).color") == "rgb(31, 37, 41)"
        assert page.pdf().startswith(b"%PDF")


@pytest.mark.slow
def test_nothing_overflows_a_narrow_window(browser: Browser, page_file: Path) -> None:
    for where in ("", "#point=mend-0.first_validation"):
        with open_page(browser, page_file, where, viewport={"width": 400, "height": 800}) as (page, _, _):
            assert page.evaluate("() => document.documentElement.scrollWidth") <= 400


def test_agent_text_is_never_interpreted(browser: Browser, tmp_path: Path) -> None:
    text = HOSTILE + INVISIBLE
    events = [event.model_copy(update={"text": f"{text} {event.text}"}) for event in PREDECESSOR]
    events[0] = events[0].model_copy(
        update={"arguments": {"command": f"cat {HOSTILE}"}, "text": text + "x" * 1_000_000, "tool": HOSTILE}
    )
    reads = (FileRead(path=HOSTILE, sha256=OLD),)
    changes = (FileChange(path=f"{HOSTILE}.txt", before=OLD, after=NEW),)
    events[1] = events[1].model_copy(update={"reads": reads, "changes": changes, "tool": HOSTILE})
    bad_trace = trace("bad", tuple(events), task=text)
    out = write_run(
        tmp_path / "out",
        [bad_trace],
        [bad_trace],
        records=1,
        views=("repository", "trace", "summary", "structured", "transcript", "cited"),
        successor=f"openai:{HOSTILE}",
        rename_task=lambda name: f"{name} {HOSTILE}",
        patch=f"+{text}\n-{text}",
    )
    results = load_results([out])._replace(warnings=(text,))
    table = Table(1, "hostile", text, (text, "view"), ((text, HOSTILE),), (text,))
    write_page(tmp_path / "report.html", results, [table], [])
    with open_page(browser, tmp_path / "report.html") as (page, _, _):
        assert HOSTILE in page.locator("#table-hostile td").first.inner_text()
        assert ESCAPED in page.locator("#table-hostile h3").inner_text()
        assert HOSTILE in page.locator("#matrix a").first.inner_text()
        page.locator("#matrix a").first.click()
        for number in range(7):
            page.locator(f"[data-timeline='{number}'] .mark").first.click()
            event = page.locator("#reader-panel pre").first.inner_text()
            assert event.startswith(HOSTILE + ESCAPED)
            assert "characters omitted" in event
            for tab in page.get_by_role("tab").all_inner_texts():
                page.get_by_role("tab", name=tab, exact=True).click()
                texts_shown = page.locator("#reader-panel").inner_text()
                assert "\u202e" not in texts_shown
                assert "\x1b" not in texts_shown
                assert "hacked" in texts_shown
        assert page.evaluate("() => typeof hacked") == "undefined"
        assert page.locator("main script, main img, main svg").count() == 0


def test_the_content_security_policy_blocks_injected_code(browser: Browser, page_file: Path) -> None:
    with open_page(browser, page_file) as (page, requests, errors):
        page.evaluate(
            """() => {
              const script = document.createElement("script");
              try { script.textContent = "hacked = 1"; document.body.append(script); } catch {}
              try { document.body.innerHTML += "<img src=x onerror='hacked = 1'>"; } catch {}
              const image = document.createElement("img");
              image.src = "http://localhost:1/x.png";
              try { image.setAttribute("onerror", "hacked = 1"); } catch {}
              document.body.append(image);
            }"""
        )
        page.wait_for_timeout(200)
        assert page.evaluate("() => typeof hacked") == "undefined"
        assert any("Content Security Policy" in each for each in errors)
        errors.clear()
        requests[:] = requests[:1]


def test_a_page_of_rows_alone_states_that_and_shows_effort(
    browser: Browser, results: Results, tmp_path: Path
) -> None:
    out = tmp_path / "published"
    shutil.copytree(results.sources[0].out, out, ignore=shutil.ignore_patterns("records", "traces"))
    write_page(tmp_path / "report.html", load_results([out]), [], [])
    with open_page(browser, tmp_path / "report.html") as (page, _, _):
        assert "Traces and records are missing" in page.locator("#rows-only").inner_text()
        page.locator("#rows tbody a").first.click()
        assert "trace missing" in page.locator(".timeline.chosen").inner_text()
        assert page.locator(".effort tbody tr").count() == 4
        page.get_by_role("tab", name="Final diff").click()
        assert page.locator(".diff .plus").count() == 1
        page.get_by_role("tab", name="First messages").click()
        assert "handoff record is missing" in page.locator("#reader-panel").inner_text()


@pytest.mark.slow
def test_a_page_of_a_single_takeover(browser: Browser, tmp_path: Path) -> None:
    out = write_run(
        tmp_path / "out", [trace("m", PREDECESSOR)], [trace("s", SUCCESSOR)], records=1, views=("repository",)
    )
    empty = Table(1, "empty", "Nothing", ("view", "n"), ())
    unknown = Table(2, "unknown", "Not known", ("view", "n"), (("trace", float("nan")), ("cited", None)))
    write_page(tmp_path / "report.html", load_results([out]), [empty, unknown], [])
    with open_page(browser, tmp_path / "report.html") as (page, _, _):
        assert page.locator("#table-empty tbody tr").count() == 0
        assert texts(page, "#table-unknown td:nth-child(2)") == ["–", "–"]
        assert page.locator("#count").inner_text() == "1 takeover"
        page.locator("#rows tbody tr td").nth(1).click()
        # The page draws after its address has changed.
        expect(page.locator(".timeline[data-timeline]")).to_have_count(2)


@pytest.mark.slow
def test_failed_takeovers_and_unknown_points_are_explained(
    browser: Browser, results: Results, tmp_path: Path
) -> None:
    failed = results.takeovers[1].model_copy(
        update={"outcome": "infrastructure_failure", "resolved": None, "detail": "the endpoint is gone"}
    )
    rows = (results.takeovers[0], failed, *results.takeovers[2:])
    write_page(tmp_path / "report.html", results._replace(takeovers=rows), [], [])
    with open_page(browser, tmp_path / "report.html", "#point=nowhere") as (page, _, _):
        assert "Handoff point nowhere not found." in page.locator("#point").inner_text()
        page.get_by_role("link", name="Show all handoff points.").click()
        page.get_by_text("1 infrastructure failure:").click()
        assert "the endpoint is gone" in page.locator(".failures li").inner_text()
    where = address(results, 1)
    with open_page(browser, tmp_path / "report.html", where) as (page, _, _):
        assert page.locator(".solved.infrastructure").count() > 0


@pytest.mark.slow
def test_a_page_of_a_small_run_is_small(page_file: Path) -> None:
    assert page_file.stat().st_size < MAX_PAGE_BYTES / 50


@pytest.mark.slow
def test_runs_of_two_successors_are_timelines_of_one_point(
    browser: Browser, results: Results, tmp_path: Path
) -> None:
    out = tmp_path / "other"
    shutil.copytree(results.sources[0].out, out, ignore=shutil.ignore_patterns("records"))
    path = out / "takeovers.jsonl"
    path.write_text(path.read_text().replace("openai:successor", "openai:other"))
    write_page(tmp_path / "report.html", load_results([out, results.sources[0].out]), [], [])
    where = "#point=mend-0.first_validation&run=trace/openai:other/1&event=2"
    with open_page(browser, tmp_path / "report.html", where) as (page, _, _):
        assert page.locator(".timeline[data-timeline]").count() == 9
        assert "openai:other" in page.locator(".timeline.chosen .head").inner_text()
        assert page.locator("[aria-selected='true'].mark").get_attribute("data-event") == "2"
        page.get_by_role("tab", name="First messages").click()
        assert page.locator(".message").count() == 1
        page.locator("#home").click()
        page.get_by_role("combobox", name="successor").select_option("openai:other")
        assert page.locator("#count").inner_text() == "16 of 32 takeovers"
