"""The application: existing and unknown paths and methods."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.websockets import WebSocketDisconnect

from shoal.coordinator.routes import ROUTES
from tests.support.http import ANONML, DDML, Coordinator, coordinator, read_problem

PATHS = sorted({way.path for way in ROUTES})


@pytest.fixture(scope="module")
def c(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    """Nothing in this file changes it."""
    with coordinator(tmp_path_factory.mktemp("app"), "anonml", "ddml") as found:
        yield found


@pytest.mark.parametrize("path", PATHS)
def test_app_rejects_other_methods(c: Coordinator, path: str) -> None:
    allowed = {way.method for way in ROUTES if way.path == path}
    for study in (ANONML, DDML):
        for method in {
            "GET",
            "POST",
            "PUT",
            "PATCH",
            "DELETE",
            "OPTIONS",
            "HEAD",
            "TRACE",
            "QUERY",
        } - allowed:
            found = c.http.request(
                method, path.format(digest=study), headers={"origin": "https://example.org"}
            )
            assert (
                found.status_code == 405
                if method == "HEAD"
                else read_problem(found) == (405, "HOST-006")
            )
            assert set(found.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize(
    "path",
    [
        "/x",
        "/v1",
        "/v2/studies",
        "/v1/studies/",
        "/healthz/",
        "//healthz",
        "/v1/studies/x/y/z",
        "/favicon.ico",
        "/docs",
    ],
)
def test_app_answers_404_for_unknown_paths(c: Coordinator, path: str) -> None:
    for method in ("GET", "POST"):
        assert read_problem(
            c.http.request(method, f"http://testserver{path}", follow_redirects=False)
        ) == (404, "HOST-001")


@pytest.mark.parametrize("path", [way.path for way in ROUTES if way.method == "GET"])
def test_responses_are_not_cached_unless_public(c: Coordinator, path: str) -> None:
    found = c.http.get(path.format(digest=ANONML), headers={"origin": "https://example.org"})
    is_the_same_for_all = path.endswith(
        ("/manifest", "/board", "/issuing", "/ohttp-keys", "/openapi.json")
    )
    assert ("public" in found.headers["cache-control"]) == is_the_same_for_all
    assert found.headers["cache-control"] == "no-store" or is_the_same_for_all
    assert found.headers["x-content-type-options"] == "nosniff"
    assert not any(
        re.match("set-cookie|access-control|server|x-powered|etag", name) for name in found.headers
    )


def test_app_serves_openapi_document(c: Coordinator) -> None:
    found = c.http.get("/v1/openapi.json").json()
    assert found["openapi"] == "3.1.0"
    assert set(found["paths"]) == set(PATHS)


def test_app_reports_health_and_readiness(c: Coordinator) -> None:
    for path in ("/healthz", "/readyz"):
        assert c.http.get(path).json() == {"status": "ok"}
        assert read_problem(c.http.get(f"{path}?x=1")) == (400, "HOST-006")


def test_app_is_not_ready_after_stop(tmp_path: Path) -> None:
    with coordinator(tmp_path) as c:
        c.service._scheduler_task.cancel()  # type: ignore[union-attr]
        assert read_problem(c.http.get("/readyz")) == (503, "HOST-004")


def test_app_rejects_websockets(c: Coordinator) -> None:
    with pytest.raises(WebSocketDisconnect), c.http.websocket_connect("/v1/studies"):
        pass


def test_app_logs_nothing(
    c: Coordinator, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG", logger="shoal"):
        c.post(ANONML, "submissions", b"rubbish")
        c.get("x", "board")
        c.http.get("/nowhere")
    assert capfd.readouterr() == ("", "")
    assert not [
        record
        for record in caplog.records
        if not record.name.startswith(("httpx", "httpcore", "asyncio"))
    ]
