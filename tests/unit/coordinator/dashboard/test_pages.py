"""The dashboard on a real service: responses, rejections, no more data than the public routes."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest
from httpx2 import Response

from shoal.coordinator.dashboard import events as pages_events
from shoal.coordinator.dashboard import pages
from shoal.coordinator.dashboard.pages import make_pages
from shoal.coordinator.mailbox import Mailbox
from shoal.coordinator.routes import ROUTES
from shoal.coordinator.service import CoordinatorService
from shoal.coordinator.store.base import StudyOutcome
from shoal.coordinator.studies import encode_result
from shoal.entropy import SeededEntropy
from shoal.errors import StoreError
from shoal.protocols.base import AGGREGATOR, run_local
from shoal.report import make_statement_page
from shoal.study.handle import StudyHandle
from shoal.study.loader import MAX_STUDY_BYTES
from shoal.study.manifest import Manifest
from shoal.study.plan import find_warnings
from shoal.study.starters import read_starter
from shoal.transport.api import STUDIES, study_route
from shoal.web.study_pages import StudyFacts
from tests.support.coordinator import identity, make_aggregator, make_peers, make_record
from tests.support.coordinator import make_manifest as make_study
from tests.support.http import (
    ANONML,
    DDML,
    MANIFESTS,
    PFDS,
    TEMPLATES,
    Coordinator,
    answer,
    coordinator,
    read_problem,
)
from tests.support.participants import make_document, make_manifest
from tests.support.servers import format_toml, live

NOWHERE = "00" * 32
PATHS = ("/", "/publish", "/studies/{digest}", "/studies/{digest}/label", "/studies/{digest}/close")
ALL = tuple((way.method, way.path) for way in make_pages(None))  # type: ignore[arg-type]
STUDY = format_toml(make_document("anonml", 20))
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
def c(tmp_path: Path) -> Iterator[Coordinator]:
    with coordinator(tmp_path, "anonml", "pfds", "ddml") as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """For requests that change nothing."""
    with coordinator(tmp_path_factory.mktemp("pages"), "anonml", "pfds", "ddml") as found:
        yield found


def publish(c: Coordinator, **fields: str) -> Response:
    """As a browser sends the form: in parts."""
    given = {"key": c.key, "study": STUDY, **fields}
    parts = {name: (None, value) for name, value in given.items() if value}
    return c.http.post("/publish", files=parts, follow_redirects=False)


def said(answer: Response) -> str:
    """What a page says, tags apart."""
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    text = re.sub(r"<[^>]*>", " ", answer.text)
    for entity, char in (
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&#39;", "'"),
        ("&#34;", '"'),
        ("&amp;", "&"),
    ):
        text = text.replace(entity, char)
    return " ".join(text.split())


# reading


def test_pages_show_list_and_each_study(c: Coordinator) -> None:
    listed = said(c.http.get("/"))
    assert "3 studies at this coordinator, 3 of them open." in listed
    for digest, manifest in (
        (ANONML, MANIFESTS["anonml"]),
        (PFDS, MANIFESTS["pfds"]),
        (DDML, MANIFESTS["ddml"]),
    ):
        assert manifest.study.title in listed and manifest.short_digest in listed
        page = said(c.http.get(f"/studies/{digest}"))
        assert manifest.study.title in page and digest in page and "fails with fewer than" in page
        label = said(c.http.get(f"/studies/{digest}/label"))
        assert all(str(word) in label for word in c.get(digest, "label").json()["not_covered"])


def test_study_page_shows_totals_of_progress(c: Coordinator) -> None:
    for i in range(27):
        assert c.enrol(ANONML, i).status_code == 200
        c.post(ANONML, "submissions", answer(i))
    for _ in range(13):
        c.post(ANONML, "submissions", b"rubbish")
    told = c.get(ANONML, "progress").json()
    assert (told["enrolled"], told["refused"]) == (20, {"MSG-002": 10})
    page = c.http.get(f"/studies/{ANONML}").text
    shown = {
        name: re.search(rf'data-field="{name}">([0-9,]+)<', page)
        for name in ("enrolled", "accepted", "refused")
    }
    assert {name: int(found[1]) for name, found in shown.items() if found} == {
        **{k: told[k] for k in ("enrolled", "accepted")},
        "refused": 10,
    }
    assert (
        "27"
        not in re.sub(
            r"[0-9a-f]{20,}|20[0-9-]+ [0-9:]+|\d+-\d+", "", said(c.http.get(f"/studies/{ANONML}"))
        ).split()
    )


def test_study_page_shows_phases_from_broadcasts(tmp_path: Path) -> None:
    with coordinator(tmp_path, "anonml", is_stepped=True) as c:
        for _ in range(500):
            page = said(c.http.get(f"/studies/{ANONML}"))
            if "Phase 1 of 1" in page:
                break
            time.sleep(0.01)
        assert re.search(r"Phase 1 of 1 opened \d{4}-\d\d-\d\d \d\d:\d\d UTC, closes \d{4}-", page)


def test_pages_have_policy_against_external_files(shared: Coordinator) -> None:
    for path in PATHS:
        found = shared.http.get(path.format(digest=ANONML))
        assert found.status_code == 200
        policy = dict(
            part.strip().split(" ", 1)
            for part in found.headers["content-security-policy"].split(";")
        )
        assert (
            policy["default-src"] == "'none'"
            and policy["frame-ancestors"] == "'none'"
            and policy["base-uri"] == "'none'"
        )
        assert (
            policy["script-src"]
            == policy["style-src"]
            == policy["connect-src"]
            == policy["form-action"]
            == "'self'"
        )
        assert (found.headers["referrer-policy"], found.headers["cache-control"]) == (
            "no-referrer",
            "no-store",
        )
        assert (
            found.headers["x-content-type-options"],
            found.headers["cross-origin-opener-policy"],
        ) == ("nosniff", "same-origin")
        assert not any(
            re.match("set-cookie|access-control|server|etag", name) for name in found.headers
        )
        for source in re.findall(r'(?:src|href|action)="([^"]*)"', found.text):
            assert source.startswith(("/", "#")) and not source.startswith("//")


def test_static_files_are_cached_for_ever(shared: Coordinator) -> None:
    page = shared.http.get(f"/studies/{ANONML}").text
    files = set(re.findall(r'"(/static/[^"]*)"', page))
    assert {name.rpartition(".")[2] for name in files} == {"css", "js", "svg"}
    for name in files:
        found = shared.http.get(name)
        assert found.status_code == 200 and "immutable" in found.headers["cache-control"]
        assert found.headers["x-content-type-options"] == "nosniff"
    for name in ("/static/style.css", "/static/..%2fviews.py", "/static/x", "/static/"):
        assert shared.http.get(name).status_code == 404


@pytest.mark.parametrize(
    "path", [path for method, path in ALL if method == "GET" and "static" not in path]
)
def test_pages_reject_invalid_queries_and_digests(shared: Coordinator, path: str) -> None:
    found = shared.http.get(f"{path.format(digest=ANONML)}?x=1")
    assert found.status_code == 400 and "HOST-006" in said(found)
    if "{digest}" in path:
        for digest in (NOWHERE, ANONML[:-1], ANONML.upper(), "x", "%3Cb%3E"):
            found = shared.http.get(path.format(digest=digest))
            assert (
                found.status_code == 404 and "HOST-001" in said(found) and "<b>" not in found.text
            )


@pytest.mark.parametrize("path", sorted({path for _, path in ALL}))
def test_pages_reject_other_methods(shared: Coordinator, path: str) -> None:
    allowed = {method for method, one in ALL if one == path}
    for method in {"GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE"} - allowed:
        found = shared.http.request(
            method, path.format(digest=ANONML, name="x"), headers={"origin": "https://example.org"}
        )
        assert (
            found.status_code == 405
            if method == "HEAD"
            else read_problem(found) == (405, "HOST-006")
        )
        assert set(found.headers["allow"].split(", ")) == allowed


def test_pages_do_not_hide_api_routes(shared: Coordinator) -> None:
    assert not {way.path for way in ROUTES} & {path for _, path in ALL}
    assert (
        shared.http.get(STUDIES, headers={"accept": "text/html"}).headers["content-type"]
        == "application/json"
    )
    assert read_problem(shared.http.get("/studies")) == (404, "HOST-001")
    assert set(shared.http.get("/v1/openapi.json").json()["paths"]) == {way.path for way in ROUTES}


def test_page_reports_unavailable_store(c: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Any:
        raise StoreError("STORE-001", "secret words of a driver")

    monkeypatch.setattr(c.store, "find_study", fail)
    found = c.http.get(f"/studies/{ANONML}")
    assert found.status_code == 503 and found.headers["retry-after"] == "1"
    assert "HOST-004" in said(found) and "secret" not in found.text


def test_statement_page_contains_digest_of_study(c: Coordinator) -> None:
    digest = publish(c).headers["location"].rpartition("/")[2]
    for one in (digest, ANONML, PFDS):
        assert f'href="/studies/{one}/statement"' in c.http.get(f"/studies/{one}").text
        found = c.http.get(f"/studies/{one}/statement")
        assert (
            found.status_code == 200
            and one in said(found)
            and "All text above follows from the study with this digest" in said(found)
        )
        assert found.text == make_statement_page(
            Manifest.from_bytes(c.store.find_study(one).manifest)
        )  # type: ignore[union-attr]
        policy = found.headers["content-security-policy"]
        assert (
            "default-src 'none'" in policy
            and "script-src" not in policy
            and "<script" not in found.text
        )
    label = c.get(digest, "label").json()
    page = said(c.http.get(f"/studies/{digest}/statement"))
    assert (
        label["seen_by"] in page and label["leaves"] in page and "a token without your name" in page
    )


def test_study_page_warns_about_noisy_result(c: Coordinator) -> None:
    digest = (
        publish(c, study=format_toml(make_document("anonml", 20, privacy={"epsilon": 0.1})))
        .headers["location"]
        .rpartition("/")[2]
    )
    record = c.store.find_study(digest)
    assert record is not None
    plan = StudyHandle(Manifest.from_bytes(record.manifest)).plan
    [warning] = find_warnings(plan, datetime.min.replace(tzinfo=UTC))
    assert "most of the result is noise" in warning
    assert c.store.end(digest, StudyOutcome("done", result=b"{}"))
    page = said(c.http.get(f"/studies/{digest}"))
    assert f"Warning. {warning}" in page and "Result" in page


# what was learned


def test_model_and_report_can_be_downloaded(c: Coordinator) -> None:
    for what in ("model", "report"):
        found = c.http.get(f"/studies/{PFDS}/{what}")
        assert (
            found.status_code == 409
            and "has no model yet" in said(found)
            and f'href="/studies/{PFDS}"' in found.text
        )
    assert c.store.end(PFDS, StudyOutcome("done", result=b'{"weights": []}'))
    found = c.http.get(f"/studies/{PFDS}/model")
    assert found.content == c.get(PFDS, "model").content == b'{"weights": []}'
    assert (
        found.headers["content-disposition"]
        == f'attachment; filename="shoal-{MANIFESTS["pfds"].short_digest}-model.json"'
    )
    assert c.store.end(DDML, StudyOutcome("failed", reason="Too few <updates>."))
    for what in ("model", "report"):
        found = c.http.get(f"/studies/{DDML}/{what}")
        assert found.status_code == 410 and "Too few <updates>." in said(found)
    assert "Too few <updates>." in said(c.http.get(f"/studies/{DDML}"))


@pytest.mark.parametrize("name", ["anonml", "sdq", "pfds", "pfds paper"])
def test_report_page_can_be_read_and_downloaded(c: Coordinator, name: str) -> None:
    aggregator = make_aggregator(make_study(name), make_record(name))
    assert aggregator is not None
    learned = run_local(aggregator, make_peers(name), SeededEntropy(3)).results[AGGREGATOR]
    assert c.store.end(
        ANONML, StudyOutcome("done", result=encode_result(StudyHandle(make_study(name)), learned))
    )
    found = c.http.get(f"/studies/{ANONML}/report")
    assert (
        found.status_code == 200
        and "A study" in said(found)
        and make_study(name).short_digest in found.text
    )
    assert "content-disposition" not in found.headers
    policy = found.headers["content-security-policy"]
    assert (
        "default-src 'none'" in policy
        and "script-src" not in policy
        and "frame-ancestors 'none'" in policy
    )
    assert "<script" not in found.text
    kept = c.http.get(f"/studies/{ANONML}/report?download=1")
    assert kept.text == found.text
    assert (
        kept.headers["content-disposition"]
        == f'attachment; filename="shoal-{MANIFESTS["anonml"].short_digest}-report.html"'
    )
    for query in ("download=2", "download", "download=1&download=1", "x=1"):
        assert c.http.get(f"/studies/{ANONML}/report?{query}").status_code == 400


def test_report_is_made_once_and_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    begun, at_once = [0], []

    def slow(documents: Sequence[Any]) -> str:
        begun[0] += 1
        at_once.append(begun[0])
        time.sleep(0.05)
        made.append(documents[0])
        begun[0] -= 1
        return f"<p>{documents[0]}</p>"

    monkeypatch.setattr(pages, "make_report", slow)
    manifests = [make_manifest("anonml", 20, title=f"Study {i}") for i in range(3)]
    with live(tmp_path, *manifests) as found, ThreadPoolExecutor(9) as threads:
        for i, manifest in enumerate(manifests):
            assert found.store.end(manifest.digest.hex(), StudyOutcome("done", result=b"%d" % i))
        asked = [
            f"{found.url}/studies/{manifest.digest.hex()}/report"
            for manifest in manifests
            for _ in range(3)
        ]
        told = [answer.text for answer in threads.map(httpx2.get, asked)]
    assert told == [f"<p>{i}</p>" for i in range(3) for _ in range(3)]
    assert sorted(made) == [0, 1, 2] and set(at_once) == {1}


def test_list_of_studies_needs_one_store_call(
    c: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = said(c.http.get("/"))
    assert c.store.end(PFDS, StudyOutcome("failed", reason="Too few."))
    for where, name in ((c.store, "find_study"), (StudyFacts, "from_handle")):
        monkeypatch.setattr(
            where, name, lambda *_: pytest.fail("What is known is not looked up again.")
        )
    after = said(c.http.get("/"))
    assert "3 of them open" in before and "2 of them open" in after and "failed" in after


# the analyst's forms


def test_publish_form_publishes_study_with_tokens(c: Coordinator) -> None:
    found = publish(c)
    assert found.status_code == 303 and not found.content
    where = found.headers["location"]
    digest = where.rpartition("/")[2]
    assert where == f"/studies/{digest}" and c.get(digest).json()["title"] == "Wind, by anonml"
    manifest = Manifest.from_bytes(c.store.find_study(digest).manifest)  # type: ignore[union-attr]
    keys = c.http.get("/v1/issuing").json()
    assert manifest.issuer_key is not None and (
        manifest.issuer_key.hex(),
        manifest.relay,
        manifest.epoch,
    ) == (
        keys["issuer_key"],
        None,
        None,
    )
    again = publish(c)
    assert (again.status_code, again.headers["location"]) == (303, where)
    assert len(c.http.get(STUDIES).json()) == 4


def test_publish_form_accepts_tickets_timeout_and_file(c: Coordinator) -> None:
    file = {"study_file": ("study.toml", STUDY.encode(), "application/toml")}
    given = {"key": c.key, "tickets": "yes", "patience": "90", "study": "not read"}
    found = c.http.post("/publish", data=given, files=file, follow_redirects=False)
    assert found.status_code == 303, found.text
    record = c.store.find_study(found.headers["location"].rpartition("/")[2])
    assert record is not None and (record.phase_timeout, Manifest.from_bytes(record.manifest)) == (
        90_000,
        make_manifest("anonml", 20),
    )


def test_publish_form_accepts_relay_and_epoch(c: Coordinator) -> None:
    found = publish(c, relay="https://relay.example.org", epoch="spring")
    assert found.status_code == 303, said(found)
    record = c.store.find_study(found.headers["location"].rpartition("/")[2])
    assert record is not None
    manifest = Manifest.from_bytes(record.manifest)
    assert (manifest.relay, manifest.epoch) == ("https://relay.example.org", "spring")


def test_publish_form_accepts_roster(c: Coordinator) -> None:
    study = (TEMPLATES / "sdq.toml").read_text()
    refused = publish(c, study=study)
    assert refused.status_code == 400 and "cannot be served without a roster" in said(refused)
    roster = "\n".join(
        f'[[member]]\nname = "site-{i}"\nkey = "{identity(i).public_key.hex()}"' for i in range(10)
    )
    found = publish(c, study=study, roster=roster)
    assert found.status_code == 303, said(found)
    assert c.get(found.headers["location"].rpartition("/")[2]).json()["has_roster"] is True
    assert "SERVE-004" in said(publish(c, roster=roster))
    assert "SERVE-004" in said(publish(c, study=study, roster="[[member]]"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"study": 'title = "<b>"'}, "SPEC-011"),
        ({"study": "= = ="}, "This is not TOML"),
        ({"study": "  "}, "There is no study in the form."),
        ({"study": "x" * (MAX_STUDY_BYTES + 1)}, "larger than 1,000,000 bytes"),
        ({"patience": "0"}, "not a number of seconds"),
        ({"patience": "1e3"}, "not a number of seconds"),
        ({"patience": "9" * 40}, "not a number of seconds"),
        ({"tickets": "yes", "epoch": "spring"}, "cannot use the epoch"),
        ({"tickets": "yes", "relay": "https://relay.example.org"}, "cannot use the relay"),
        ({"relay": "http://relay.example.org"}, "MANIFEST-002"),
        (
            {
                "study": format_toml(make_document("pfds", 3, pfds={"n_holders": 3})),
                "relay": "https://r.example.org",
            },
            "cannot use the relay",
        ),
    ],
)
def test_publish_form_returns_error_for_unservable_study(
    shared: Coordinator, fields: dict[str, str], words: str
) -> None:
    found = publish(shared, **fields)
    assert found.status_code == 400 and words in said(found)
    assert 'role="alert"' in found.text and shared.key not in found.text
    assert len(shared.http.get(STUDIES).json()) == 3
    for name, value in fields.items():
        assert name in ("tickets", "study") or value in said(found) + found.text


def test_publish_form_rejects_draft(shared: Coordinator) -> None:
    found = publish(
        shared, study=read_starter("anonml").replace("# public knowledge", "# READ FROM THE DATA")
    )
    assert found.status_code == 400 and "SERVE-005" in said(found)
    assert len(shared.http.get(STUDIES).json()) == 3


def test_publish_form_rejects_study_that_is_not_text(shared: Coordinator) -> None:
    file = {"study_file": ("study.toml", b"title = 1\n\xff", "application/toml")}
    found = shared.http.post("/publish", data={"key": shared.key}, files=file)
    assert found.status_code == 400 and "study.toml:2 The study file is not UTF-8 text." in said(
        found
    )


def test_forms_reject_wrong_key(shared: Coordinator) -> None:
    wrong = shared.key[:-1] + ("0" if shared.key[-1] != "0" else "1")
    for path, fields in (("/publish", {"study": STUDY}), (f"/studies/{ANONML}/close", {})):
        for key, code in (
            ("", "AUTH-001"),
            (" ", "AUTH-001"),
            (wrong, "AUTH-002"),
            ("ä", "AUTH-002"),
            (shared.key + "0", "AUTH-002"),
        ):
            found = shared.http.post(path, data={**fields, "key": key}, follow_redirects=False)
            assert (
                found.status_code == 401
                and code in said(found)
                and found.headers["www-authenticate"]
            )
            assert key.strip() == "" or key not in found.text
        bearer = {"authorization": f"Bearer {shared.key}"}
        assert shared.http.post(path, data=fields or {"x": "y"}, headers=bearer).status_code == 401
        assert "HOST-006" in said(shared.http.post(path, content=b"key", headers=FORM))
        assert "HOST-006" in said(shared.http.post(path, json={"key": shared.key}))
        assert shared.http.post(f"{path}?x=1", data={"key": shared.key}).status_code == 400
        assert (
            shared.http.post(path, content=bytes(4 * MAX_STUDY_BYTES), headers=FORM).status_code
            == 413
        )
    assert [study["status"] for study in shared.http.get(STUDIES).json()] == ["open"] * 3


def test_forms_let_the_service_compare_keys(
    c: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = CoordinatorService.is_analyst
    monkeypatch.setattr(
        CoordinatorService, "is_analyst", lambda self, key: asked.append(key) or real(self, key)
    )
    assert publish(c, key="no").status_code == 401 and publish(c).status_code == 303
    assert asked == ["no", c.key]


def test_close_form_ends_study(c: Coordinator) -> None:
    path = f"/studies/{ANONML}/close"
    assert "that participants have spent is not returned" in said(c.http.get(path))
    found = c.http.post(path, data={"key": c.key}, follow_redirects=False)
    assert (found.status_code, found.headers["location"]) == (303, f"/studies/{ANONML}")
    page = said(c.http.get(f"/studies/{ANONML}"))
    assert (
        "The analyst has closed the study early." in page
        and "The analyst has closed the study." in page
    )
    assert "The study has already ended (closed)." in said(c.http.get(path))
    assert c.http.post(f"/studies/{NOWHERE}/close", data={"key": c.key}).status_code == 404


def test_form_of_other_origin_is_rejected_and_not_returned(shared: Coordinator) -> None:
    for path in ("/publish", f"/studies/{ANONML}/close"):
        for site in ("cross-site", "same-site"):
            given = {"study": STUDY, "key": shared.key}
            found = shared.http.post(
                path, data=given, headers={"sec-fetch-site": site}, follow_redirects=False
            )
            assert (
                found.status_code == 403
                and "a page of another origin" in said(found)
                and "<form" not in found.text
            )
        own = shared.http.post(path, data={"key": "no"}, headers={"sec-fetch-site": "same-origin"})
        assert own.status_code == 401
    assert [study["status"] for study in shared.http.get(STUDIES).json()] == ["open"] * 3


def test_long_fields_without_key_are_not_returned(
    shared: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = publish(shared, key="no", study='"' * MAX_STUDY_BYTES, relay="https://r.example.org")
    assert (
        long.status_code == 401
        and len(long.content) < 10_000
        and "https://r.example.org" in long.text
    )
    # The analyst has everything back.
    assert len(publish(shared, study='"' * MAX_STUDY_BYTES).content) > MAX_STUDY_BYTES
    monkeypatch.setattr(
        CoordinatorService,
        "is_analyst",
        lambda *_: pytest.fail("Nothing as long as this is a key, and need not be hashed."),
    )
    assert "AUTH-002" in said(publish(shared, key="-" * MAX_STUDY_BYTES))


def test_forms_do_not_log_key(c: Coordinator, capfd: pytest.CaptureFixture[str]) -> None:
    publish(c, key="deadbeef")
    publish(c)
    assert capfd.readouterr() == ("", "")


# events


def events_of(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


@contextmanager
def follow(http: httpx2.Client, url: str, digest: str) -> Iterator[Response]:
    with http.stream("GET", f"{url}/studies/{digest}/events", timeout=30) as found:
        yield found


def test_event_stream_sends_progress_until_study_ends(tmp_path: Path) -> None:
    manifest = make_manifest("anonml", 20)
    digest = manifest.digest.hex()
    with (
        live(tmp_path, manifest) as found,
        httpx2.Client() as http,
        follow(http, found.url, digest) as stream,
    ):
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert (stream.headers["cache-control"], stream.headers["x-content-type-options"]) == (
            "no-store",
            "nosniff",
        )
        events = events_of(stream.iter_lines())
        with httpx2.Client() as other:
            assert next(events) == other.get(f"{found.url}{study_route(digest, 'progress')}").json()
            found.store.end(digest, StudyOutcome("failed", reason="Too few."))
            last = next(events)
            assert (
                last == other.get(f"{found.url}{study_route(digest, 'progress')}").json()
                and last["status"] == "failed"
            )
        assert next(events, None) is None
        with follow(http, found.url, digest) as again:
            assert [event["status"] for event in events_of(again.iter_lines())] == ["failed"]


def test_one_query_serves_all_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, looks, stop = make_manifest("anonml", 20), [], []
    digest = manifest.digest.hex()
    real = CoordinatorService.get_progress

    async def counted(self: CoordinatorService, study: str) -> dict[str, Any]:
        looks.append(time.monotonic())
        # Whatever changes meanwhile, it is told at the next look.
        return {
            **await real(self, study),
            "accepted": 10 * len(looks),
            **({"status": "done"} if stop else {}),
        }

    monkeypatch.setattr(CoordinatorService, "get_progress", counted)
    with live(tmp_path, manifest) as found, ExitStack() as stack:
        https = [stack.enter_context(httpx2.Client()) for _ in range(8)]
        streams = [
            events_of(stack.enter_context(follow(http, found.url, digest)).iter_lines())
            for http in https
        ]
        for stream in streams:
            next(stream)
        for stream in streams:
            next(stream)
        # Eight streams that look for themselves would look at almost the same moments.
        assert (
            min(later - earlier for earlier, later in pairwise(looks))
            > pages_events.PAUSE_SECONDS / 2 - 0.05
        )
        stop.append(True)


def test_one_wait_serves_all_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, waits = make_manifest("anonml", 20), []
    digest = manifest.digest.hex()
    real = Mailbox.fetch

    async def counted(self: Mailbox, study: str, name: str | None, after: int, wait: float) -> Any:
        waits.append(study)
        return await real(self, study, name, after, wait)

    monkeypatch.setattr(Mailbox, "fetch", counted)
    monkeypatch.setattr(pages_events, "QUIET_SECONDS", 0.0)
    n_streams, n_rounds = 12, 3
    with live(tmp_path, manifest) as found, ExitStack() as stack:
        https = [stack.enter_context(httpx2.Client()) for _ in range(n_streams)]
        streams = [
            stack.enter_context(follow(http, found.url, digest)).iter_lines() for http in https
        ]
        for stream in streams:
            for _ in range(n_rounds):
                assert ": still here" in stream
        # Streams that wait for themselves would have waited so often at least.
        assert len(waits) < n_streams * n_rounds / 2


def test_concurrent_stream_requests_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_events, "MAX_STREAMS", 4)
    manifest = make_manifest("anonml", 20)
    with live(tmp_path, manifest) as found, ExitStack() as stack:
        where = ("127.0.0.1", int(found.url.rpartition(":")[2]))
        sockets = [
            stack.enter_context(socket.create_connection(where, timeout=30)) for _ in range(60)
        ]
        for one in sockets:
            one.sendall(
                f"GET /studies/{manifest.digest.hex()}/events HTTP/1.1\r\nhost: a\r\n\r\n".encode()
            )
        heads = [one.recv(12) for one in sockets]
        assert heads.count(b"HTTP/1.1 200") == 4 and heads.count(b"HTTP/1.1 503") == 56


def test_streams_beyond_limit_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_events, "MAX_STREAMS", 2)
    manifest = make_manifest("anonml", 20)
    digest = manifest.digest.hex()
    with live(tmp_path, manifest) as found:
        with ExitStack() as stack:
            https = [stack.enter_context(httpx2.Client()) for _ in range(2)]
            streams = [
                events_of(stack.enter_context(follow(http, found.url, digest)).iter_lines())
                for http in https
            ]
            assert [next(stream)["status"] for stream in streams] == ["open", "open"]
            refused = httpx2.get(f"{found.url}/studies/{digest}/events")
            assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        for _ in range(100):
            # A closed stream leaves room, a moment later.
            with httpx2.Client() as http, follow(http, found.url, digest) as stream:
                if stream.status_code == 200:
                    break
            time.sleep(0.05)
        assert stream.status_code == 200


def test_stream_sends_comments_and_ends_after_longest_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_events, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(pages_events, "LONGEST_SECONDS", 1.5)
    manifest = make_manifest("anonml", 20)
    with (
        live(tmp_path, manifest) as found,
        httpx2.Client() as http,
        follow(http, found.url, manifest.digest.hex()) as stream,
    ):
        lines: Sequence[str] = [line for line in stream.iter_lines() if line]
    assert lines[0] == "event: progress" and set(lines[2:]) == {": still here"}


def test_stream_ends_if_store_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = make_manifest("anonml", 20)
    with (
        live(tmp_path, manifest) as found,
        httpx2.Client() as http,
        follow(http, found.url, manifest.digest.hex()) as stream,
    ):
        lines = stream.iter_lines()
        assert next(events_of(lines))["status"] == "open"

        def fail(*_: object) -> Any:
            raise StoreError("STORE-001", "It is away.")

        monkeypatch.setattr(found.store, "count_totals", fail)
        assert not list(events_of(lines))
        monkeypatch.undo()


def test_stream_ends_when_worker_stops(tmp_path: Path) -> None:
    manifest = make_manifest("anonml", 20)
    with ExitStack() as stack:
        with live(tmp_path, manifest) as found:
            raw = stack.enter_context(
                socket.create_connection(
                    ("127.0.0.1", int(found.url.rpartition(":")[2])), timeout=30
                )
            )
            raw.sendall(
                f"GET /studies/{manifest.digest.hex()}/events HTTP/1.1\r\nhost: a\r\n\r\n".encode()
            )
            # Its head and the first event come together, or one after the other.
            come = b""
            while b"event: progress" not in come:
                part = raw.recv(4096)
                assert part, come
                come += part
        # It has stopped, since nothing waits for this stream any more; its end was sent in good
        # order.
        rest = b"".join(iter(lambda: raw.recv(4096), b""))
        assert rest.endswith(b"0\r\n\r\n")
