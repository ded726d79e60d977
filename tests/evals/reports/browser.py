"""A real browser without a window, and what goes wrong or out in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Browser, Page, sync_playwright

from ...conftest import skip_missing


@contextmanager
def launch_chromium() -> Iterator[Browser]:
    """Debian's; nothing is downloaded."""
    found = shutil.which("chromium")
    if found is None:
        skip_missing("there is no chromium here; on Debian: apt-get install chromium")
    # While it is open, this thread counts as one that runs an event loop, so nobody may keep it for long.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


class BrowserPage(NamedTuple):
    """A page, with what it asked for and what it complained of."""

    page: Page
    requests: list[str]
    complaints: list[str]


@contextmanager
def open_page(browser: Browser, path: Path, address: str = "", **settings: Any) -> Iterator[BrowserPage]:
    """The file in a browser that has seen nothing before; it must neither complain nor ask for anything else."""
    context = browser.new_context(**settings)
    page = context.new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text))
    page.goto(f"{path.as_uri()}{address}")
    page.wait_for_selector("body[data-ready]")
    yield BrowserPage(page, requests, complaints)
    context.close()
    assert complaints == []
    assert [url.partition("#")[0] for url in requests if not url.startswith("data:")] == [path.as_uri()]
