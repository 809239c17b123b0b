"""The HTTP client over real sockets: requests, responses and errors."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import numpy as np
import pytest

from shoal.clock import ManualClock
from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy
from shoal.errors import ConsentError, RemoteProtocolError, TransportError, UsageError
from shoal.messages.base import Array
from shoal.participant.client import (
    LONGEST_WAIT,
    Client,
    RefusedError,
    make_client_tls_context,
    validate_url,
)
from shoal.participant.network.base import DirectPath
from shoal.protocols.ddml.messages import ID_BYTES, DDMLDraw, DDMLInstance, DDMLUpdate
from shoal.transport.api import (
    Enrolled,
    Enrolment,
    MessagePage,
    Poll,
    Problem,
    QueuedMessage,
    to_cbor,
    to_json,
)
from shoal.transport.signing import verify_request
from tests.support.tls import make_certificates

T = TypeVar("T")

STUDY = "ab" * 32
ME = Identity.from_seed(bytes(32))


def answer(body: bytes = b"", status: int = 200, **headers: str) -> bytes:
    lines = "".join(
        f"{name}: {value}\r\n"
        for name, value in {"content-length": str(len(body)), **headers}.items()
    )
    return f"HTTP/1.1 {status} Some\r\n{lines}\r\n".encode() + body


def problem(code: str, status: int, **headers: str) -> bytes:
    return answer(
        to_json(Problem(title="It is so.", status=status, code=code, detail="Why.", fix="Do.")),
        status,
        **headers,
    )


class PreparedServer:
    """A server that gives one prepared answer to each request, and keeps what it received."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.n_connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.n_connections += 1
        try:
            while self.answers:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                headers = {
                    name.lower(): value
                    for name, _, value in (line.partition(": ") for line in head[1:] if line)
                }
                self.requests.append(
                    (
                        head[0],
                        headers,
                        await reader.readexactly(int(headers.get("content-length", "0"))),
                    )
                )
                writer.write(self.answers.pop(0))
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


def talk(
    canned: PreparedServer,
    act: Callable[[Client], Awaitable[T]],
    clock: ManualClock | None = None,
    *,
    is_apart: bool = False,
) -> T:
    """Return the result of a client that receives prepared answers."""

    async def go() -> T:
        async with await asyncio.start_server(canned.serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with Client(
                url, clock or ManualClock(), SeededEntropy(1), is_isolated=is_apart
            ) as client:
                return await act(client)

    return asyncio.run(go())


def test_anonymous_request_does_not_identify_sender() -> None:
    canned = PreparedServer(answer(status=202, **{"set-cookie": "who=me"}), answer(status=202))

    async def act(client: Client) -> None:
        async with client.open_isolated() as apart:
            await apart.submit_message(STUDY, b"one")
            await apart.submit_message(STUDY, b"two")

    talk(canned, act)
    (first, headers, body), (_, again, _) = canned.requests
    assert first == f"POST /v1/studies/{STUDY}/submissions HTTP/1.1"
    assert body == b"one"
    assert headers == again
    assert set(headers) == {
        "host",
        "user-agent",
        "accept",
        "accept-encoding",
        "content-type",
        "content-length",
    }
    assert headers["user-agent"] == "shoal"
    assert canned.n_connections == 2


def test_signed_request_is_valid_for_its_route() -> None:
    clock, letters = (
        ManualClock(),
        MessagePage(letters=(QueuedMessage(number=4, payload=b"hello"),), status="done"),
    )
    canned = PreparedServer(
        answer(to_json(Enrolled(name="holder-1", position=1))),
        answer(status=202),
        answer(to_cbor(letters)),
        answer(status=204),
    )

    async def act(client: Client) -> Any:
        return (
            await client.enrol(STUDY, ME, Enrolment(invitation="code")),
            await client.send_message(STUDY, ME, b"message"),
            await client.poll_mailbox(STUDY, ME, Poll(after=3, wait_seconds=1)),
            await client.leave(STUDY, ME),
        )

    assert talk(canned, act, clock) == (Enrolled(name="holder-1", position=1), None, letters, None)
    now, nonces = int(clock.now().timestamp() * 1000), set()
    for first, headers, body in canned.requests:
        method, target, _ = first.split()
        signed = verify_request(headers["authorization"], method, target, body, now)
        assert signed.key == ME.public_key
        nonces.add(signed.nonce)
    assert len(nonces) == 4
    assert canned.n_connections == 1


def test_wrong_clock_is_corrected_a_few_times() -> None:
    clock = ManualClock()
    theirs = clock.now() + timedelta(hours=3)
    refusal = problem("AUTH-003", 401, date=format_datetime(theirs, usegmt=True))
    canned = PreparedServer(refusal, refusal, answer(status=202), *[refusal] * 5)

    async def act(client: Client) -> None:
        await client.send_message(STUDY, ME, b"message")
        with pytest.raises(RefusedError, match="AUTH-003"):
            await client.send_message(STUDY, ME, b"message")

    talk(canned, act, clock)
    times = [int(headers["authorization"].split()[2]) for _, headers, _ in canned.requests]
    assert times[1] - times[0] == 3 * 3_600_000
    assert times[1:] == [times[1]] * 7


def test_dates_of_other_responses_are_ignored() -> None:
    canned = PreparedServer(
        problem("AUTH-003", 401, date="yesterday"),
        problem("AUTH-002", 401, date=format_datetime(datetime(2031, 1, 1, tzinfo=UTC))),
    )

    async def act(client: Client) -> None:
        for code in ("AUTH-003", "AUTH-002"):
            with pytest.raises(RefusedError, match=code):
                await client.send_message(STUDY, ME, b"message")

    talk(canned, act)
    assert len(canned.requests) == 2


BAD = {
    "refused": (problem("MSG-005", 400), RefusedError, "MSG-005"),
    "over": (problem("HOST-002", 410), RefusedError, "HOST-002"),
    "busy": (problem("HOST-004", 503), TransportError, "HOST-004"),
    "a fault of its own": (problem("HOST-007", 500), TransportError, "NET-002"),
    "an unknown code": (problem("TEA-001", 418), TransportError, "NET-002"),
    "too many": (problem("HOST-005", 429), TransportError, "NET-002"),
    "no problem": (answer(b"<html>", 404), TransportError, "NET-002"),
    "a redirect": (answer(status=302, location="http://example.org/"), TransportError, "NET-002"),
    "too much": (answer(bytes(1 << 15), 202), TransportError, "NET-002"),
    "no HTTP": (b"hello\r\n\r\n", TransportError, "NET-001"),
    "cut short": (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab", TransportError, "NET-001"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_response_raises_error_with_code(name: str) -> None:
    data, kind, code = BAD[name]
    with pytest.raises(kind) as error:
        talk(PreparedServer(data), lambda client: client.submit_message(STUDY, b"x"))
    assert type(error.value) is kind
    assert error.value.code == code and error.value.fix


@pytest.mark.parametrize("code", ["ENROL-001", "ENROL-002"])
def test_not_admitted_error_has_exit_code_of_consent(code: str) -> None:
    with pytest.raises(RefusedError, match=code) as error:
        talk(
            PreparedServer(problem(code, 403)), lambda client: client.enrol(STUDY, ME, Enrolment())
        )
    assert error.value.exit_code == ConsentError.exit_code != RefusedError.exit_code


@pytest.mark.parametrize(
    "data",
    [b"[1]", b"{}", b'[{"digest": 1, "title": "a", "status": "open"}]', b"[" * 10_000, b"\xff"],
)
def test_fetch_studies_rejects_bad_list(data: bytes) -> None:
    with pytest.raises(TransportError, match="NET-002"):
        talk(PreparedServer(answer(data)), lambda client: client.fetch_studies())


@pytest.mark.parametrize(
    "act",
    [
        lambda c: c.fetch_manifest(STUDY),
        lambda c: c.fetch_broadcasts(STUDY, 0),
        lambda c: c.poll_mailbox(STUDY, ME, Poll()),
    ],
)
def test_bad_body_of_response_is_rejected(act: Callable[[Client], Awaitable[object]]) -> None:
    with pytest.raises(TransportError, match="NET-002"):
        talk(PreparedServer(answer(b"\xa1")), act)


def test_text_of_coordinator_is_escaped() -> None:
    told = Problem(title="\x1b[2J" + "x" * 1000, status=400, code="MSG-005")
    with pytest.raises(RefusedError) as error:
        talk(
            PreparedServer(answer(to_json(told), 400)),
            lambda client: client.submit_message(STUDY, b"x"),
        )
    assert "\x1b" not in str(error.value)
    assert len(str(error.value)) < 500


def test_send_update_adds_signature_ticket_or_token() -> None:
    canned = PreparedServer(*[answer(status=202)] * 3, answer(bytes([3]) + bytes(7 + 4)))
    study, identifier = bytes.fromhex(STUDY), bytes(ID_BYTES)
    weights = Array.from_values(np.zeros(1, np.int32))
    update = DDMLUpdate(study=study, id=identifier, epoch=3, weights=weights)
    draw = DDMLDraw(study=study, id=identifier)

    async def act(client: Client) -> DDMLInstance:
        await client.send_update(STUDY, update, 0)
        await client.send_update(STUDY, update, 1, ticket=b"\xab")
        await client.send_update(STUDY, update, 2, identity=ME)
        return await client.draw_instance(STUDY, draw)

    instance = talk(canned, act)
    assert (instance.draw, instance.epoch, instance.weights) == (identifier, 3, weights)
    assert [headers.get("shoal-ticket") for _, headers, _ in canned.requests] == [
        None,
        "ab 1",
        None,
        None,
    ]
    assert ["/update?number=2 " in line for line, _, _ in canned.requests] == [
        False,
        False,
        True,
        False,
    ]
    assert ["authorization" in headers for _, headers, _ in canned.requests] == [
        False,
        False,
        True,
        False,
    ]


class Nothing(httpx2.AsyncByteStream):
    """An empty body."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b""


def test_retry_repeats_until_coordinator_answers() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    def reply(request: httpx2.Request) -> httpx2.Response:
        if len(slept) < 12:
            raise httpx2.ConnectError("refused")
        return httpx2.Response(202, stream=Nothing())

    async def go() -> None:
        said: list[TransportError] = []
        client = Client(
            "http://[::1]:1",
            ManualClock(),
            SeededEntropy(1),
            make_transport=lambda: httpx2.MockTransport(reply),
            sleep=sleep,
        )
        async with client:
            await client.retry(lambda: client.submit_message(STUDY, b"x"), said.append)
        assert [error.code for error in said] == ["NET-001"] * 12

    asyncio.run(go())
    waits = [min(0.2 * 2**i, LONGEST_WAIT) for i in range(12)]
    assert all(wait / 2 <= seconds <= wait for seconds, wait in zip(slept, waits, strict=True))
    assert len({seconds / wait for seconds, wait in zip(slept, waits, strict=True)}) == 12


@pytest.mark.parametrize(
    "url", ["https://x.org:8700/", "http://127.0.0.1:1", "http://localhost/a/", "http://[::1]:5"]
)
def test_client_accepts_valid_address(url: str) -> None:
    assert validate_url(url) == url.rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "x.org",
        "ftp://x.org",
        "http://x.org",
        "https://me@x.org",
        "https://x.org/?a",
        "https://",
        "https://x.org:port",
        "https://ü.org",
    ],
)
def test_client_rejects_invalid_address(url: str) -> None:
    with pytest.raises(UsageError, match="USAGE-001"):
        validate_url(url)


@pytest.mark.parametrize(
    "url", ["http://abc.onion", "https://abc.onion:8700", "http://abc.onion./", "http://a.b.ONION"]
)
def test_client_rejects_onion_service_without_tor(url: str) -> None:
    with pytest.raises(UsageError, match="only over Tor"):
        validate_url(url)
    assert validate_url(url, is_tor=True) == url.rstrip("/")


def test_certificates_are_read_from_system_or_file(tmp_path: Path) -> None:
    assert make_client_tls_context() is make_client_tls_context()
    (tmp_path / "ca.pem").write_text("nothing")
    for ca in (tmp_path / "ca.pem", tmp_path / "none.pem"):
        with pytest.raises(UsageError, match="USAGE-001"):
            make_client_tls_context(ca)


def test_untrusted_certificate_raises_error_without_retry(
    tmp_path: Path,
) -> None:
    made, said = make_certificates(tmp_path), list[TransportError]()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate, made.key)
    canned = PreparedServer(answer(b"[]"))

    async def go() -> list[Any]:
        async with await asyncio.start_server(canned.serve, "127.0.0.1", 0, ssl=context) as server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with Client(url, ManualClock(), SeededEntropy(1)) as client:
                with pytest.raises(RemoteProtocolError, match="NET-003") as error:
                    await client.retry(client.fetch_studies, said.append)
                assert error.value.fix is not None and "--ca FILE" in error.value.fix
            async with Client(
                url, ManualClock(), SeededEntropy(1), network_path=DirectPath(url, made.ca)
            ) as client:
                return await client.fetch_studies()

    assert asyncio.run(go()) == [] and not said


def test_refused_error_is_remote_protocol_error() -> None:
    assert issubclass(RefusedError, RemoteProtocolError)
