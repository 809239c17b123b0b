"""The documentation site: built as by ``make docs``, links checked, and read in a real browser."""

from __future__ import annotations

import http.server
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tools import site

pytest.importorskip("zensical", reason="zensical is not installed: pip install --group dev")

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("docs").resolve() / "site"
    site.build(to)
    return to


@pytest.fixture(scope="module")
def address(built: Path) -> Iterator[str]:
    """Serve the site over HTTP on loopback: from files, browsers start no workers for search."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Quiet, directory=str(built))
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_site_has_valid_links_and_loads_nothing_external(built: Path) -> None:
    assert site.problems(built) == []
    assert (built / "reference/errors.html").read_text("utf-8").count("<h3") > 100


def test_problems_finds_broken_links_and_external_files(built: Path, tmp_path: Path) -> None:
    copy = tmp_path / "site"
    shutil.copytree(built, copy)
    page = copy / "credits.html"
    text = page.read_text("utf-8")
    bad = (
        '<a href="gone.html">x</a><a href="index.html#nowhere">y</a><img '
        'src="https://example.org/p.png"><script src="gone.js"></script>'
    )
    page.write_text(
        text.replace("</article>", f"{bad}</article>").replace(
            "default-src 'none'", "default-src *"
        ),
        "utf-8",
    )
    (copy / "alone.html").write_text(text, "utf-8")
    (copy / "site.css").write_text("@import url(//example.org/a.css);", "utf-8")
    (copy / "comparison.html").unlink()
    found = set(site.problems(copy.resolve()))
    assert {
        "credits.html: gone.html leads nowhere.",
        "credits.html: index.html#nowhere leads to no such place of the page.",
        "credits.html: loads https://example.org/p.png.",
        "credits.html: loads gone.js, which is not there.",
        "credits.html: does not forbid browsers to load from elsewhere.",
        "alone.html: no page links to it.",
        "site.css: loads //example.org/a.css.",
        "docs/comparison.md is not part of the site.",
    } <= found


def test_build_fails_for_link_to_missing_page(tmp_path: Path) -> None:
    for part in site.PARTS:
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(site.ROOT / "tools/site_theme", tmp_path / "tools/site_theme")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Home\n\nSee [there](there.md).\n")
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "s"\n')
    with pytest.raises(site.SiteError, match=r"index\.md:3:\d+: page does not exist"):
        site.build(tmp_path / "out", tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")
def test_search_finds_error_code_without_external_requests(address: str) -> None:
    from playwright.sync_api import sync_playwright

    asked: list[str] = []
    faults: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on(
            "console",
            lambda message: faults.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: faults.append(str(error)))
        for name in ("index.html", "reference/errors.html", "benchmarks/anonml.html"):
            page.goto(address + name)
            page.wait_for_load_state("networkidle")
        page.goto(address + "index.html")
        page.wait_for_load_state("networkidle")
        page.keyboard.press("Control+k")
        page.locator("input:focus").wait_for(timeout=120_000)
        page.keyboard.type("BUDGET-002")
        found = page.locator('a[href*="reference/errors.html"][href$="#budget-002"]').first
        found.wait_for(timeout=120_000)
        found.click()
        page.wait_for_url("**/reference/errors.html*")
        assert page.locator("h3#budget-002").inner_text().startswith("BUDGET-002")
        browser.close()
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    assert faults == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")
def test_site_works_without_script_and_from_file(built: Path) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_context(java_script_enabled=False).new_page()
        page.goto((built / "index.html").as_uri())
        assert page.locator("h1").inner_text().startswith("shoal")
        page.locator("article a", has_text="what is proved where").first.click()
        assert page.locator("h1").inner_text().startswith("What is proved where")
        browser.close()
