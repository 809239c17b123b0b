"""The dashboard of a real ``shoal serve`` in a real browser.

An analyst publishes, people take part, and everyone watches, reads and downloads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from shoal.study.starters import read_starter
from tests.browser.visitor import Visitor
from tests.support.participants import make_document
from tests.support.servers import Coordinator, fleet, format_toml, write_csv

N_PEOPLE = 20
Visit = Callable[..., Visitor]


@dataclass(frozen=True)
class Site:
    """A coordinator, and a directory for the files of participants."""

    coordinator: Coordinator
    home: Path

    @property
    def url(self) -> str:
        return self.coordinator.url

    @property
    def key(self) -> str:
        return str(self.coordinator.notice["analyst_key"])

    def study(self, title: str) -> str:
        participation = {"minimum": N_PEOPLE, "size": N_PEOPLE}
        return format_toml(
            make_document("anonml", N_PEOPLE, title=title, participation=participation)
        )

    def take_part(self, digest: str) -> None:
        """Run real participants that answer."""
        data = write_csv(self.home / "rows.csv", N_PEOPLE)
        log, files = self.home / f"fleet-{digest[:8]}", self.home / digest[:8]
        people = fleet(log, self.coordinator, data, files, N_PEOPLE, "--study", digest)
        try:
            assert people.wait() == 0, people.read_output()
        finally:
            people.kill()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = tmp_path_factory.mktemp("dashboard")
    (home / "ddml.toml").write_text(read_starter("ddml"))
    (home / "pfds.toml").write_text(read_starter("pfds"))
    with Coordinator(home, "ddml.toml", "pfds.toml", "--port", "0") as found:
        assert found.notice["dashboard"] == f"{found.url}/"
        yield Site(found, home)
        assert found.end() == (0, "")


def read_digest(visitor: Visitor) -> str:
    found = re.fullmatch(r".*/studies/([0-9a-f]{64})", visitor.page.url)
    assert found is not None, visitor.page.url
    return found[1]


def download(visitor: Visitor, link: str, path: Path) -> tuple[str, bytes]:
    """Return the name and contents of a link's download."""
    with visitor.page.expect_download() as waiting:
        visitor.page.get_by_role("link", name=link).click()
    waiting.value.save_as(path)
    return waiting.value.suggested_filename, path.read_bytes()


def test_dashboard_shows_study_from_publishing_to_report(
    site: Site, visit: Visit, tmp_path: Path
) -> None:
    analyst = visit()
    page = analyst.page
    analyst.goto(site.url)
    assert page.get_by_role("heading", level=1).inner_text() == "Studies"
    page.get_by_role("navigation").get_by_role("link", name="Publish").click()

    page.get_by_label("The analyst’s key").fill("00" * 32)
    page.get_by_label("or study as text").fill(site.study("When do we play?"))
    page.get_by_text("Roster, relay and time").click()
    page.get_by_label("Admit anonymous packets by tickets").check()
    with page.expect_navigation() as refused:
        page.get_by_role("button", name="Publish").click()
    assert refused.value.status == 401
    assert "This is not the analyst's key." in page.get_by_role("alert").inner_text()
    # The form keeps everything except the key.
    assert page.get_by_label("The analyst’s key").input_value() == ""
    assert "When do we play?" in page.get_by_label("or study as text").input_value()
    assert page.get_by_label("Admit anonymous packets by tickets").is_checked()

    page.get_by_label("The analyst’s key").fill(site.key)
    page.get_by_role("button", name="Publish").click()
    page.wait_for_url("**/studies/*")
    digest = read_digest(analyst)
    assert page.get_by_role("heading", level=1).inner_text() == "When do we play?"
    assert (
        f"shoal join {site.url} --data rows.csv --study {digest[:12]}"
        in page.locator(".command").inner_text()
    )

    page.evaluate("window.mark = 'as it was loaded'")
    assert page.locator("[data-field=accepted]").inner_text() == "0"
    assert page.get_by_role("link", name="Download the model").count() == 0
    site.take_part(digest)
    page.locator("[data-field=status]", has_text="done").wait_for()
    assert page.evaluate("window.mark") == "as it was loaded"
    assert page.locator("[data-field=accepted]").inner_text() == str(N_PEOPLE)
    assert page.get_by_label("Answers accepted").evaluate("bar => bar.value") == N_PEOPLE
    assert page.get_by_role("heading", name="Take part", exact=True).count() == 0
    assert "The study has ended." in page.locator("[role=status]").inner_text()

    name, model = download(analyst, "Download the model", tmp_path / "model.json")
    assert name.endswith("-model.json") and json.loads(model) == site.coordinator.model(digest)
    name, report = download(analyst, "Download the report", tmp_path / "report.html")
    assert name.endswith("-report.html") and report.lstrip()[:15].lower() == b"<!doctype html>"
    page.get_by_role("link", name="Read the report").click()
    page.wait_for_url("**/report")
    assert "When do we play?" in page.locator("body").inner_text()
    page.go_back()
    page.get_by_role("link", name="Read the full label").click()
    assert "at most 88.1 of 100" in page.get_by_role("table").inner_text()
    analyst.check(site.url, refused=1)

    reader = visit(offline=True)
    reader.goto((tmp_path / "report.html").as_uri())
    assert "When do we play?" in reader.page.locator("body").inner_text()
    assert reader.errors == [] and reader.requests == [(tmp_path / "report.html").as_uri()]


def test_dashboard_works_without_script(site: Site, visit: Visit, tmp_path: Path) -> None:
    analyst = visit(java_script_enabled=False)
    page = analyst.page
    analyst.goto(f"{site.url}/publish")
    (tmp_path / "study.toml").write_text(site.study("Without script"))
    page.get_by_label("The analyst’s key").fill("no key")
    page.get_by_role("button", name="Publish").click()
    assert "This is not the analyst's key." in page.get_by_role("alert").inner_text()
    page.get_by_label("The analyst’s key").fill(site.key)
    page.get_by_label("Study file").set_input_files(tmp_path / "study.toml")
    page.get_by_text("Roster, relay and time").click()
    page.get_by_label("Admit anonymous packets by tickets").check()
    page.get_by_role("button", name="Publish").click()
    page.wait_for_url("**/studies/*")
    digest = read_digest(analyst)
    assert "Without JavaScript this page is not updated." in page.locator("main").inner_text()
    site.take_part(digest)
    site.coordinator.model(digest)
    assert page.locator("[data-field=accepted]").inner_text() == "0"
    page.get_by_role("link", name="Refresh").click()
    assert page.locator("[data-field=accepted]").inner_text() == str(N_PEOPLE)
    _, model = download(analyst, "Download the model", tmp_path / "model.json")
    assert json.loads(model) == site.coordinator.model(digest)
    page.get_by_role("link", name="Read the report").click()
    assert "Without script" in page.locator("body").inner_text()
    page.go_back()
    page.get_by_role("link", name="Read the full label").click()
    assert "at most 88.1 of 100" in page.get_by_role("table").inner_text()
    analyst.check(site.url, refused=1)


def test_analyst_ends_study_on_dashboard(site: Site, visit: Visit) -> None:
    """End a study with tokens, for which packets are anonymous."""
    analyst, other = visit(), visit()
    page = analyst.page
    analyst.goto(f"{site.url}/publish")
    page.get_by_label("The analyst’s key").fill(site.key)
    page.get_by_label("or study as text").fill(site.study("To be ended"))
    page.get_by_role("button", name="Publish").click()
    page.wait_for_url("**/studies/*")
    assert "The token proves that" in page.locator("main").inner_text()
    other.goto(page.url)
    page.get_by_role("link", name="Close this study (analyst)").click()
    page.get_by_label("The analyst’s key").fill(site.key)
    page.get_by_role("button", name="Close the study").click()
    page.wait_for_url("**/studies/*")
    assert "The analyst has closed the study." in page.locator("main").inner_text()
    # Other viewers see it too.
    other.page.locator("[data-field=status]", has_text="closed").wait_for()
    assert (
        "The analyst has closed the study."
        in other.page.locator("[data-field=reason]").inner_text()
    )
    analyst.check(site.url)
    other.check(site.url)


COMMON, OF_A_STUDY = ("/", "/publish", f"/studies/{'00' * 32}"), ("", "/label", "/close")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dashboard_is_accessible(site: Site, visit: Visit, scheme: str) -> None:
    wide, narrow = (
        visit(color_scheme=scheme),
        visit(color_scheme=scheme, viewport={"width": 390, "height": 800}),
    )
    for path in (
        *COMMON,
        *(f"/studies/{study}{part}" for study in site.coordinator.studies for part in OF_A_STUDY),
    ):
        for visitor in (wide, narrow):
            visitor.goto(site.url + path)
            for details in visitor.page.locator("details").all():
                details.evaluate("node => { node.open = true; }")
            assert visitor.find_accessibility_faults() == [], path
            assert not visitor.is_too_wide(), path
        if scheme == "light":
            there, reached, are_seen = wide.tab_through()
            assert reached == there and len(there) > 4 and are_seen, path
    for visitor in (wide, narrow):
        visitor.check(site.url, refused=1)


def test_dashboard_works_with_keyboard_only(site: Site, visit: Visit) -> None:
    visitor = visit(reduced_motion="reduce")
    page = visitor.page
    visitor.goto(site.url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    title = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("Enter")
    page.wait_for_url("**/studies/*")
    assert page.get_by_role("heading", level=1).inner_text() == title
    assert (
        page.locator("progress").evaluate("bar => getComputedStyle(bar).transitionDuration") == "0s"
    )
    visitor.check(site.url)


def test_hidden_dashboard_pages_release_connections(site: Site, visit: Visit) -> None:
    """Open eight pages: a browser opens six connections to a host."""
    visitor = visit()
    address = f"{site.url}/studies/{site.coordinator.studies[0]}"
    look_away = (
        "isHidden => { Object.defineProperty(document, 'hidden', { value: isHidden, "
        "configurable: true }); "
    )
    look_away += "document.dispatchEvent(new Event('visibilitychange')); }"
    pages = [visitor.page, *(visitor.page.context.new_page() for _ in range(7))]
    for page in pages:
        with page.expect_request("**/events"):
            page.goto(address)
        page.evaluate(look_away, True)
    # A page that is visible again shows the news.
    with pages[0].expect_request("**/events"):
        pages[0].evaluate(look_away, False)
    assert pages[0].locator("[data-field=stopped]").is_hidden()
    visitor.check(site.url)


@contextmanager
def serve_other_site(page: str) -> Iterator[str]:
    """Yield the address of a server on this machine that answers each request with a page."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_other_origin_cannot_frame_or_read_dashboard(site: Site, visit: Visit) -> None:
    visitor = visit()
    with serve_other_site(
        f"<!doctype html><link rel='icon' href='data:,'><iframe src='{site.url}/publish'></iframe>"
    ) as elsewhere:
        visitor.goto(elsewhere)
        read = (
            "(url) => fetch(url).then((answer) => answer.text()).catch((error) => `refused: "
            "${error.name}`)"
        )
        for path in ("/v1/studies", "/", "/publish"):
            assert visitor.page.evaluate(read, site.url + path) == "refused: TypeError"
        frame = next(frame for frame in visitor.page.frames if frame.parent_frame is not None)
        assert frame.get_by_label("The analyst’s key").count() == 0
    assert any("frame-ancestors" in error for error in visitor.errors), visitor.errors


def test_other_origin_cannot_submit_publish_form(site: Site, visit: Visit) -> None:
    """Submit without a key.

    The dashboard must not return the form, filled in, for the analyst to add the key.
    """
    visitor = visit()
    form = (
        "<!doctype html><link rel='icon' href='data:,'><form method='post' "
        f"enctype='multipart/form-data' action='{site.url}/publish'>"
    )
    with serve_other_site(
        f"{form}<textarea name='study'>title = 'Theirs'</textarea><button>Win</button></form>"
    ) as elsewhere:
        visitor.goto(elsewhere)
        with visitor.page.expect_navigation() as refused:
            visitor.page.get_by_role("button", name="Win").click()
    assert refused.value.status == 403
    assert "a page of another origin" in visitor.page.get_by_role("alert").inner_text()
    assert visitor.page.locator("form").count() == 0 and "Theirs" not in visitor.page.content()
