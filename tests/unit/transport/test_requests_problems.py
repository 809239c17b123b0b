"""The status of each error, and responses of a failing application."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.errors import (
    CODES,
    LocalProtocolError,
    RemoteProtocolError,
    ShoalError,
    SpecError,
    StoreError,
    TransportError,
    UsageError,
)
from shoal.transport.api import Problem, from_json
from shoal.transport.requests import (
    ErrorMiddleware,
    RequestError,
    find_status,
    make_problem_response,
    not_found_error,
    study_ended_error,
)

STATUSES = {
    "MSG-001": 413,
    "MSG-002": 400,
    "MSG-006": 400,
    "PROTO-003": 400,
    "AUTH-001": 401,
    "AUTH-002": 401,
    "AUTH-003": 401,
    "AUTH-005": 401,
    "ENROL-001": 403,
    "ENROL-002": 409,
    "HOST-001": 404,
    "HOST-002": 409,
    "HOST-003": 400,
    "HOST-005": 409,
}


def raising(error: BaseException) -> ASGIApp:
    async def app(*_: object) -> None:
        raise error

    return app


def asked(app: ASGIApp, kind: str = "http") -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError("nothing is read")

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(ErrorMiddleware(app)({"type": kind, "method": "GET", "headers": []}, receive, send))
    return sent


def headers_of(message: Message) -> dict[bytes, bytes]:
    return dict(message["headers"])


@pytest.mark.parametrize(("code", "status"), STATUSES.items())
def test_find_status_returns_4xx_for_error_of_caller(code: str, status: int) -> None:
    assert find_status(RemoteProtocolError(code, "No.")) == status
    answer = make_problem_response(RemoteProtocolError(code, "No.", why="Because.", fix="Do not."))
    found = from_json(bytes(answer.body), Problem)
    assert (found.status, found.code, found.title, found.detail, found.fix) == (
        status,
        code,
        "No.",
        "Because.",
        "Do not.",
    )
    assert answer.media_type == "application/problem+json"
    assert ("www-authenticate" in answer.headers) == (status == 401)


def test_remote_errors_are_not_5xx_except_one() -> None:
    assert {code for code in CODES if find_status(RemoteProtocolError(code, "No.")) >= 500} == {
        "HOST-004"
    }


def test_find_status_returns_400_for_invalid_manifest() -> None:
    assert find_status(SpecError("MANIFEST-001", "7 bytes are not a manifest.")) == 400


@pytest.mark.parametrize(
    "error",
    [
        LocalProtocolError("PROTO-001", "secret"),
        UsageError("USAGE-001", "secret"),
        ValueError("secret"),
    ],
)
def test_internal_error_is_not_described(error: Exception) -> None:
    answer = make_problem_response(error)
    assert answer.status_code == 500
    assert json.loads(bytes(answer.body))["code"] == "HOST-007"
    assert b"secret" not in bytes(answer.body)


@pytest.mark.parametrize(
    "error", [StoreError("STORE-001", "secret"), TransportError("HOST-004", "secret")]
)
def test_unavailable_service_gets_503_and_retry_after(error: ShoalError) -> None:
    answer = make_problem_response(error)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert json.loads(bytes(answer.body))["code"] == "HOST-004"
    assert b"secret" not in bytes(answer.body)


def test_request_error_overrides_status() -> None:
    assert (find_status(study_ended_error("7f" * 32)), study_ended_error("7f" * 32).code) == (
        410,
        "HOST-002",
    )
    assert (find_status(not_found_error("No.")), not_found_error("No.").code) == (404, "HOST-001")
    answer = make_problem_response(RequestError(405, "HOST-006", "No.", headers={"allow": "GET"}))
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


def test_every_response_has_default_headers() -> None:
    async def plain(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"yes")(scope, receive, send)

    async def cached(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"yes", headers={"cache-control": "public"})(scope, receive, send)

    for app, cache in (
        (plain, b"no-store"),
        (cached, b"public"),
        (raising(not_found_error("No.")), b"no-store"),
    ):
        headers = headers_of(asked(app)[0])
        assert headers[b"cache-control"] == cache
        assert headers[b"x-content-type-options"] == b"nosniff"
        assert not {b"set-cookie", b"access-control-allow-origin"} & set(headers)


def test_unexpected_exception_is_logged_by_type_only(capsys: pytest.CaptureFixture[str]) -> None:
    start, body = asked(raising(ZeroDivisionError("a secret")))
    assert start["status"] == 500
    assert b"secret" not in body["body"]
    error = capsys.readouterr().err
    assert error == "shoal: a request failed with an internal error: ZeroDivisionError\n"


def test_errors_of_callers_are_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(raising(RemoteProtocolError("MSG-002", "No.")))[0]["status"] == 400
    assert asked(raising(StoreError("STORE-001", "No.")))[0]["status"] == 503
    assert asked(raising(ClientDisconnect())) == []
    assert capsys.readouterr().err == ""


def test_error_after_response_start_sends_no_second_response(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def half(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError("a secret")

    assert [message["type"] for message in asked(half)] == ["http.response.start"]
    assert capsys.readouterr().err == "shoal: a request failed with an internal error: KeyError\n"


def test_middleware_rejects_websockets_and_passes_lifespan() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        seen.append(scope["type"])

    assert asked(app, "websocket") == [{"type": "websocket.close", "code": 1000}]
    assert asked(app, "lifespan") == []
    assert seen == ["lifespan"]
