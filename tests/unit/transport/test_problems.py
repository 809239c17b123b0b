"""The status of every error, and what a failing application says to strangers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.errors import CODES, LocalProtocolError, RemoteProtocolError, ShoalError, SpecError, StoreError, TransportError, UsageError
from shoal.transport.forms import Problem, from_json
from shoal.transport.problems import Guard, RequestError, not_here, over, problem, status_of

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

    asyncio.run(Guard(app)({"type": kind, "method": "GET", "headers": []}, receive, send))
    return sent


def headers_of(message: Message) -> dict[bytes, bytes]:
    return dict(message["headers"])


@pytest.mark.parametrize(("code", "status"), STATUSES.items())
def test_a_sender_who_is_to_blame(code: str, status: int) -> None:
    assert status_of(RemoteProtocolError(code, "No.")) == status
    answer = problem(RemoteProtocolError(code, "No.", why="Because.", fix="Do not."))
    found = from_json(bytes(answer.body), Problem)
    assert (found.status, found.code, found.title, found.detail, found.fix) == (status, code, "No.", "Because.", "Do not.")
    assert answer.media_type == "application/problem+json"
    assert ("www-authenticate" in answer.headers) == (status == 401)


def test_no_code_of_a_stranger_s_fault_is_a_5xx_but_one() -> None:
    assert {code for code in CODES if status_of(RemoteProtocolError(code, "No.")) >= 500} == {"HOST-004"}


def test_a_manifest_that_does_not_fit() -> None:
    assert status_of(SpecError("MANIFEST-001", "7 bytes are not a manifest.")) == 400


@pytest.mark.parametrize("error", [LocalProtocolError("PROTO-001", "secret"), UsageError("USAGE-001", "secret"), ValueError("secret")])
def test_our_own_fault_is_not_described(error: Exception) -> None:
    answer = problem(error)
    assert answer.status_code == 500
    assert json.loads(bytes(answer.body))["code"] == "HOST-007"
    assert b"secret" not in bytes(answer.body)


@pytest.mark.parametrize("error", [StoreError("STORE-001", "secret"), TransportError("HOST-004", "secret")])
def test_what_may_pass(error: ShoalError) -> None:
    answer = problem(error)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert json.loads(bytes(answer.body))["code"] == "HOST-004"
    assert b"secret" not in bytes(answer.body)


def test_statuses_that_a_route_knows_better() -> None:
    assert (status_of(over("7f" * 32)), over("7f" * 32).code) == (410, "HOST-002")
    assert (status_of(not_here("No.")), not_here("No.").code) == (404, "HOST-001")
    answer = problem(RequestError(405, "HOST-006", "No.", headers={"allow": "GET"}))
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


def test_every_answer_has_its_headers() -> None:
    async def plain(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"yes")(scope, receive, send)

    async def cached(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"yes", headers={"cache-control": "public"})(scope, receive, send)

    for app, cache in ((plain, b"no-store"), (cached, b"public"), (raising(not_here("No.")), b"no-store")):
        headers = headers_of(asked(app)[0])
        assert headers[b"cache-control"] == cache
        assert headers[b"x-content-type-options"] == b"nosniff"
        assert not {b"set-cookie", b"access-control-allow-origin"} & set(headers)


def test_the_unexpected_is_told_by_its_type_alone(capsys: pytest.CaptureFixture[str]) -> None:
    start, body = asked(raising(ZeroDivisionError("a secret")))
    assert start["status"] == 500
    assert b"secret" not in body["body"]
    assert capsys.readouterr().err == "shoal: a request failed by a fault of ours: ZeroDivisionError\n"


def test_what_strangers_do_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(raising(RemoteProtocolError("MSG-002", "No.")))[0]["status"] == 400
    assert asked(raising(StoreError("STORE-001", "No.")))[0]["status"] == 503
    assert asked(raising(ClientDisconnect())) == []
    assert capsys.readouterr().err == ""


def test_an_answer_that_has_begun_is_not_begun_again(capsys: pytest.CaptureFixture[str]) -> None:
    async def half(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError("a secret")

    assert [message["type"] for message in asked(half)] == ["http.response.start"]
    assert capsys.readouterr().err == "shoal: a request failed by a fault of ours: KeyError\n"


def test_no_websockets_and_lifespans_pass() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, _: Receive, __: Send) -> None:
        seen.append(scope["type"])

    assert asked(app, "websocket") == [{"type": "websocket.close", "code": 1000}]
    assert asked(app, "lifespan") == []
    assert seen == ["lifespan"]
