"""Bodies up to a limit, content types and queries."""

from __future__ import annotations

import asyncio

import pytest
from starlette.requests import Request
from starlette.types import Message

from shoal.errors import RemoteProtocolError
from shoal.transport.forms import MAX_CONTROL_BYTES, Poll
from shoal.transport.problems import RequestError
from shoal.transport.reading import body_of, body_up_to, check_type, digest_of, empty_body, form_of, query_of


class Asked:
    """A request whose body comes in chunks; how many were read is seen."""

    def __init__(self, *chunks: bytes, query: str = "", digest: str = "", **headers: str) -> None:
        self.n_read = 0
        self._chunks = chunks or (b"",)
        named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "headers": named, "query_string": query.encode(), "path_params": {"digest": digest}}
        self.request = Request(scope, self._receive)

    async def _receive(self) -> Message:
        self.n_read += 1
        return {"type": "http.request", "body": self._chunks[self.n_read - 1], "more_body": self.n_read < len(self._chunks)}


def refused(error: pytest.ExceptionInfo[RequestError]) -> tuple[int, str]:
    return error.value.status, error.value.code


def test_a_body_as_large_as_it_may_be() -> None:
    assert asyncio.run(body_of(Asked(b"abc", b"de").request, 5)) == b"abcde"
    assert asyncio.run(body_of(Asked(b"abcde", content_length="5").request, 5)) == b"abcde"
    assert asyncio.run(empty_body(Asked().request)) == b""


def test_a_stated_length_is_enough_to_refuse() -> None:
    asked = Asked(b"abcdef", content_length="6")
    with pytest.raises(RequestError) as error:
        asyncio.run(body_of(asked.request, 5))
    assert refused(error) == (413, "MSG-001")
    assert error.value.headers == {"connection": "close"}
    assert asked.n_read == 0


def test_what_is_too_large_is_not_read_to_its_end() -> None:
    for lies in ({}, {"content_length": "3"}, {"content_length": "-1"}, {"content_length": "many"}):
        asked = Asked(b"abc", b"def", b"ghi", **lies)
        with pytest.raises(RequestError) as error:
            asyncio.run(body_of(asked.request, 5))
        assert refused(error) == (413, "MSG-001")
        assert asked.n_read == 2


def test_one_byte_more_shows_that_it_is_too_large() -> None:
    assert len(asyncio.run(body_up_to(Asked(b"abcdefgh").request, 5))) == 6
    assert len(asyncio.run(body_up_to(Asked(b"abcdefgh", content_length="8").request, 5))) == 6


def test_content_types() -> None:
    for given in ("application/json", "Application/JSON; charset=utf-8"):
        check_type(Asked(content_type=given).request, "application/json")
    for headers in ({}, {"content_type": "text/plain"}, {"content_type": "application/jsonx"}):
        with pytest.raises(RequestError) as error:
            check_type(Asked(**headers).request, "application/json")
        assert refused(error) == (415, "HOST-006")


def test_queries() -> None:
    allowed = {"after": range(100), "wait": range(31)}
    assert query_of(Asked(query="after=7&wait=30").request, allowed) == {"after": 7, "wait": 30}
    assert query_of(Asked().request) == {}
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
            query_of(Asked(query=query).request, allowed)
        assert refused(error) == (400, "HOST-006")
        assert str(error.value.what).startswith("The query has a" if query in unknown else "The query's after")
    with pytest.raises(RequestError, match="does not take"):
        query_of(Asked(query="after=1").request)


def test_digests() -> None:
    assert digest_of(Asked(digest="7f" * 32).request) == "7f" * 32
    for digest in ("7F" * 32, "7f" * 31, "7f" * 32 + "\n", "zz" * 32, "٣" * 64):
        with pytest.raises(RequestError) as error:
            digest_of(Asked(digest=digest).request)
        assert refused(error) == (404, "HOST-001")


def test_forms() -> None:
    asked = Asked(b'{"after": 3}', content_type="application/json")
    assert asyncio.run(form_of(asked.request, Poll)) == (Poll(after=3), b'{"after": 3}')
    for body, code in ((b'{"after": false}', "MSG-005"), (b'{"after": 1.0}', "MSG-005"), (b"[" * 9000, "MSG-002"), (b"\xff", "MSG-002")):
        with pytest.raises(RemoteProtocolError) as error:
            asyncio.run(form_of(Asked(body, content_type="application/json").request, Poll))
        assert error.value.code == code
    with pytest.raises(RequestError) as refusal:
        asyncio.run(form_of(Asked(b" " * (MAX_CONTROL_BYTES + 1), content_type="application/json").request, Poll))
    assert refused(refusal) == (413, "MSG-001")
