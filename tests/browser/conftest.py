"""Debian's Chromium, driven by Playwright.

If a test fails, a picture of the page is kept.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.browser.visitor import Visitor

CHROMIUM = Path("/usr/bin/chromium")
KEPT = Path(
    os.environ.get("SHOAL_SCREENSHOTS") or Path(tempfile.gettempdir()) / "shoal-screenshots"
)
_REPORT = pytest.StashKey[pytest.TestReport]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: Any = yield
    if report.when == "call":
        item.stash[_REPORT] = report
    return report


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: make test installs it."
    )
    if not CHROMIUM.exists():
        pytest.skip(f"There is no {CHROMIUM}: apt install chromium")
    with playwright.sync_playwright() as started:
        # Root has no sandbox, and tests in a container run as root.
        found = started.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield found
        found.close()


@pytest.fixture
def visit(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Yield a function that makes visitors, each with a separate browser profile."""
    visitors: list[Visitor] = []
    with ExitStack() as stack:

        def make_visitor(**settings: Any) -> Visitor:
            context = browser.new_context(accept_downloads=True, **settings)
            context.set_default_timeout(20_000)
            stack.callback(context.close)
            visitors.append(Visitor(context.new_page()))
            return visitors[-1]

        yield make_visitor
        report = request.node.stash.get(_REPORT, None)
        if report is not None and report.failed:
            KEPT.mkdir(parents=True, exist_ok=True)
            for i, one in enumerate(visitors):
                path = KEPT / f"{re.sub(r'[^a-z0-9]+', '-', request.node.name.lower())}-{i}.png"
                one.page.screenshot(path=path, full_page=True)
                print(f"picture of the page: {path}")
