"""A headless browser that records requests and errors of a page."""

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
    """Launch the installed Chromium; nothing is downloaded."""
    executable = shutil.which("chromium")
    if executable is None:
        skip_missing("chromium not found (on Debian: apt-get install chromium)")
    # An open Playwright marks this thread as running an event loop, so close it soon.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


class BrowserPage(NamedTuple):
    """A page with its requests and error messages."""

    page: Page
    requests: list[str]
    errors: list[str]


@contextmanager
def open_page(browser: Browser, path: Path, address: str = "", **settings: Any) -> Iterator[BrowserPage]:
    """Open the file in a new browser context; it must cause no errors and no other requests."""
    context = browser.new_context(**settings)
    page = context.new_page()
    requests: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text))
    page.goto(f"{path.as_uri()}{address}")
    page.wait_for_selector("body[data-ready]")
    yield BrowserPage(page, requests, errors)
    context.close()
    assert errors == []
    assert [url.partition("#")[0] for url in requests if not url.startswith("data:")] == [path.as_uri()]
