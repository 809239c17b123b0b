"""Debian's Chromium, driven by Playwright; a picture of the page is kept where a test fails."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from browser.looking import Visitor

CHROMIUM = Path("/usr/bin/chromium")
KEPT = Path(os.environ.get("SHOAL_SCREENSHOTS") or Path(tempfile.gettempdir()) / "shoal-screenshots")
_REPORT = pytest.StashKey[pytest.TestReport]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: Any = yield
    if report.when == "call":
        item.stash[_REPORT] = report
    return report


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make test installs it.")
    if not CHROMIUM.exists():
        pytest.skip(f"There is no {CHROMIUM}: apt install chromium")
    with playwright.sync_playwright() as started:
        # Root has no sandbox, and is who runs tests in a container.
        found = started.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield found
        found.close()


@pytest.fixture
def visit(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Makes visitors, each with a browser profile of its own."""
    visitors: list[Visitor] = []
    with ExitStack() as stack:

        def visitor(**settings: Any) -> Visitor:
            context = browser.new_context(accept_downloads=True, **settings)
            context.set_default_timeout(20_000)
            stack.callback(context.close)
            visitors.append(Visitor(context.new_page()))
            return visitors[-1]

        yield visitor
        report = request.node.stash.get(_REPORT, None)
        if report is not None and report.failed:
            KEPT.mkdir(parents=True, exist_ok=True)
            for i, one in enumerate(visitors):
                path = KEPT / f"{re.sub(r'[^a-z0-9]+', '-', request.node.name.lower())}-{i}.png"
                one.page.screenshot(path=path, full_page=True)
                print(f"picture of the page: {path}")
