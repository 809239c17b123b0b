"""The README's screenshot: the first screen of the demonstration's report.

``make screenshot`` runs the demonstration and this module, which writes ``docs/report.png``. It
needs Playwright and Debian's Chromium, which ``make test`` installs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

CHROMIUM = "/usr/bin/chromium"
WIDTH, HEIGHT = 900, 1550


def write_screenshot(page: Path, picture: Path) -> None:
    """Write the top of an HTML file as PNG."""
    with sync_playwright() as playwright:
        # Root has no sandbox.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        visitor = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.2
        )
        visitor.goto(page.absolute().as_uri())
        visitor.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    write_screenshot(Path(sys.argv[1]), Path(sys.argv[2]))
