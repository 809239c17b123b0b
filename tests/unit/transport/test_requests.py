"""Limits of bodies, content types and queries."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from shoal.errors import RemoteProtocolError
from shoal.transport.api import MAX_CONTROL_BYTES, Poll
from shoal.transport.requests import (
    RequestError,
    check_content_type,
    read_body,
    read_body_up_to,
    read_digest,
    read_empty_body,
    read_form,
    read_query,
    run_until_disconnect,
)


class Asked:
    """A request whose body comes in chunks; how many were read is seen."""

    def __init__(self, *chunks: bytes, query: str = "", digest: str = "", **headers: str) -> None:
        self.n_read = 0
        self._chunks = chunks or (b"",)
        named = [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ]
        scope = {
            "type": "http",
            "method": "POST",
            "headers": named,
            "query_string": query.encode(),
            "path_params": {"digest": digest},
        }
        self.request = Request(scope, self._receive)

    async def _receive(self) -> Message:
        self.n_read += 1
        return {
            "type": "http.request",
            "body": self._chunks[self.n_read - 1],
            "more_body": self.n_read < len(self._chunks),
        }


def refused(error: pytest.ExceptionInfo[RequestError]) -> tuple[int, str]:
    return error.value.status, error.value.code


def test_read_body_accepts_body_of_largest_size() -> None:
    assert asyncio.run(read_body(Asked(b"abc", b"de").request, 5)) == b"abcde"
    assert asyncio.run(read_body(Asked(b"abcde", content_length="5").request, 5)) == b"abcde"
    assert asyncio.run(read_empty_body(Asked().request)) == b""


def test_read_body_rejects_too_large_stated_length() -> None:
    asked = Asked(b"abcdef", content_length="6")
    with pytest.raises(RequestError) as error:
        asyncio.run(read_body(asked.request, 5))
    assert refused(error) == (413, "MSG-001")
    assert error.value.headers == {"connection": "close"}
    assert asked.n_read == 0


def test_read_body_stops_reading_too_large_body() -> None:
    for lies in ({}, {"content_length": "3"}, {"content_length": "-1"}, {"content_length": "many"}):
        asked = Asked(b"abc", b"def", b"ghi", **lies)
        with pytest.raises(RequestError) as error:
            asyncio.run(read_body(asked.request, 5))
        assert refused(error) == (413, "MSG-001")
        assert asked.n_read == 2


def test_read_body_up_to_returns_one_byte_above_limit() -> None:
    assert len(asyncio.run(read_body_up_to(Asked(b"abcdefgh").request, 5))) == 6
    assert len(asyncio.run(read_body_up_to(Asked(b"abcdefgh", content_length="8").request, 5))) == 6


def test_check_content_type_rejects_other_types() -> None:
    for given in ("application/json", "Application/JSON; charset=utf-8"):
        check_content_type(Asked(content_type=given).request, "application/json")
    for headers in ({}, {"content_type": "text/plain"}, {"content_type": "application/jsonx"}):
        with pytest.raises(RequestError) as error:
            check_content_type(Asked(**headers).request, "application/json")
        assert refused(error) == (415, "HOST-006")


def test_read_query_accepts_only_numbers_in_range() -> None:
    allowed = {"after": range(100), "wait": range(31)}
    assert read_query(Asked(query="after=7&wait=30").request, allowed) == {"after": 7, "wait": 30}
    assert read_query(Asked().request) == {}
    unknown = ["x=1", "after=7&x=1", "x"]
    for query in [
        *unknown,
        "after=",
        "after=abc",
        "after=-1",
        "after=1.0",
        "after=100",
        "after=1&after=1",
        "after=٣",
        "after=1e1",
        "after=%00",
    ]:
        with pytest.raises(RequestError) as error:
            read_query(Asked(query=query).request, allowed)
        assert refused(error) == (400, "HOST-006")
        assert str(error.value.what).startswith(
            "The query has a" if query in unknown else "The query's after"
        )
    with pytest.raises(RequestError, match="does not accept"):
        read_query(Asked(query="after=1").request)


def test_read_digest_rejects_other_paths() -> None:
    assert read_digest(Asked(digest="7f" * 32).request) == "7f" * 32
    for digest in ("7F" * 32, "7f" * 31, "7f" * 32 + "\n", "zz" * 32, "٣" * 64):
        with pytest.raises(RequestError) as error:
            read_digest(Asked(digest=digest).request)
        assert refused(error) == (404, "HOST-001")


def test_read_form_returns_form_and_bytes() -> None:
    asked = Asked(b'{"after": 3}', content_type="application/json")
    assert asyncio.run(read_form(asked.request, Poll)) == (Poll(after=3), b'{"after": 3}')
    for body, code in (
        (b'{"after": false}', "MSG-005"),
        (b'{"after": 1.0}', "MSG-005"),
        (b"[" * 9000, "MSG-002"),
        (b"\xff", "MSG-002"),
    ):
        with pytest.raises(RemoteProtocolError) as error:
            asyncio.run(read_form(Asked(body, content_type="application/json").request, Poll))
        assert error.value.code == code
    with pytest.raises(RequestError) as refusal:
        asyncio.run(
            read_form(
                Asked(b" " * (MAX_CONTROL_BYTES + 1), content_type="application/json").request, Poll
            )
        )
    assert refused(refusal) == (413, "MSG-001")


def test_work_stops_when_connection_ends() -> None:
    async def main() -> None:
        ended, work = asyncio.Event(), asyncio.Event()

        async def receive() -> Message:
            await ended.wait()
            return {"type": "http.disconnect"}

        async def wait() -> int:
            await work.wait()
            return 7

        request = Request({"type": "http", "headers": []}, receive)
        running = asyncio.create_task(run_until_disconnect(request, wait()))
        await asyncio.sleep(0.01)
        ended.set()
        with pytest.raises(ClientDisconnect):
            await running
        ended.clear()
        work.set()
        assert await run_until_disconnect(request, wait()) == 7

        async def fail() -> None:
            raise RemoteProtocolError("MSG-001", "Too large.")

        with pytest.raises(RemoteProtocolError, match="MSG-001"):
            await run_until_disconnect(request, fail())

    asyncio.run(main())
