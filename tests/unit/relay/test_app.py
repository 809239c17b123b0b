"""Responses of a relay: packets stored once, requests forwarded, nothing about senders kept."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from shoal.entropy import SystemEntropy
from shoal.errors import TransportError
from shoal.relay import studies
from shoal.relay.app import KEY_CACHE_TIME, RelayHandlers, make_app
from shoal.relay.spool import Spool
from shoal.transport import bhttp, ohttp
from shoal.transport.api import (
    KEYS,
    OHTTP_REQUEST,
    OHTTP_RESPONSE,
    PACKETS,
    PROBLEM,
    RELAYING,
    REQUESTS,
    STUDIES,
    RelayedStudies,
    from_json,
)
from tests.support.participants import compute_packet_size
from tests.support.relay import RELAY, TO, scene


def read_problem(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == PROBLEM
    found = answer.json()
    assert found["status"] == answer.status_code and found["title"]
    return answer.status_code, found["code"]


async def post_from(s: Any, address: str, sealed: bytes) -> httpx2.Response:
    """Post a packet from an address."""
    transport = httpx2.ASGITransport(app=s.app, client=(address, 1234))
    async with httpx2.AsyncClient(transport=transport, base_url=RELAY) as http:
        return await http.post(
            f"{PACKETS}/{s.digest}", content=sealed, headers={"content-type": OHTTP_REQUEST}
        )


def run(folder: Path, test: Any, **options: Any) -> None:
    async def main() -> None:
        async with scene(folder, **options) as s:
            await test(s)

    asyncio.run(main())


def test_relay_lists_served_studies(tmp_path: Path) -> None:
    async def test(s: Any) -> None:
        found = await s.http.get(RELAYING)
        page = await s.service.mailbox.fetch(s.digest, None, 0, 0)
        opening = hashlib.sha256(page.letters[0].payload).hexdigest()
        assert from_json(found.content, RelayedStudies) == RelayedStudies(
            to=TO,
            studies={s.digest: compute_packet_size(s.manifest)},
            asks={s.digest: {"0": opening}},
        )
        assert found.headers["cache-control"] == "no-store"
        assert (await s.http.get("/healthz")).json() == {"status": "ok"}

    run(tmp_path, test)


def test_relay_serves_one_gateway_key_to_all(tmp_path: Path) -> None:
    async def test(s: Any) -> None:
        answers = [await s.http.get(KEYS) for _ in range(3)]
        assert {one.content for one in answers} == {s.service.gateway.encode_key_configuration()}
        assert answers[0].headers["content-type"] == ohttp.KEYS_CONTENT_TYPE
        assert sum(one.url.path == KEYS for one in s.wire.requests) == 1
        s.wire.is_cut = True
        assert (await s.http.get(KEYS)).content == answers[0].content
        s.clock.advance(KEY_CACHE_TIME.total_seconds())
        assert read_problem(await s.http.get(KEYS)) == (503, "HOST-004")

    run(tmp_path, test)


def test_relay_stores_repeated_packet_once(tmp_path: Path) -> None:
    async def test(s: Any) -> None:
        sealed = s.sealed(0)
        answers = [await s.post(sealed), await s.post(sealed), await s.post(s.sealed(1))]
        assert {
            (one.status_code, one.content, tuple(sorted(one.headers.items()))) for one in answers
        } == {
            (
                202,
                b"",
                (
                    ("cache-control", "no-store"),
                    ("content-length", "0"),
                    ("x-content-type-options", "nosniff"),
                ),
            )
        }
        assert s.spool.count_waiting(s.digest, 0) == 2

    run(tmp_path, test)


def test_relay_rejects_invalid_packet(tmp_path: Path) -> None:
    async def test(s: Any) -> None:
        sealed = s.sealed(0)
        assert read_problem(await s.post(sealed[:-1])) == (400, "RELAY-001")
        assert read_problem(await s.post(b"")) == (400, "RELAY-001")
        assert read_problem(await s.post(sealed + b"x")) == (400, "RELAY-001")
        assert read_problem(await s.post(bytes(1 << 20))) == (400, "RELAY-001")
        assert read_problem(await s.post(sealed, kind="text/plain")) == (415, "HOST-006")
        assert read_problem(await s.post(sealed, study="00" * 32)) == (404, "RELAY-001")
        assert read_problem(await s.post(sealed, study="x")) == (404, "HOST-001")
        assert read_problem(await s.post(sealed, study=f"{s.digest}?x=1")) == (400, "HOST-006")
        assert read_problem(await s.http.get(f"{PACKETS}/{s.digest}")) == (405, "HOST-006")
        assert read_problem(await s.http.get("/v1/studies")) == (404, "HOST-001")
        assert s.spool.count_waiting(s.digest, 0) == 0

    run(tmp_path, test)


def test_relay_rejects_packets_beyond_limit_of_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(s: Any) -> None:
        s.followed.n_expected = 2
        monkeypatch.setattr(studies, "SPOOL_FACTOR", 1)
        sealed = [s.sealed(i) for i in range(3)]
        assert [(await s.post(one)).status_code for one in sealed[:2]] == [202, 202]
        refused = await s.post(sealed[2])
        assert read_problem(refused) == (503, "HOST-004")
        assert int(refused.headers["retry-after"]) >= 1
        await s.until(700)
        assert s.wire.batches() == []

    run(tmp_path, test)


def test_relay_limits_packets_of_one_sender(tmp_path: Path) -> None:
    """Rubbish from one network, as much as the study expects in all, and no more; others are heard,
    and those of the next phase.
    """

    async def test(s: Any) -> None:
        s.followed.n_expected = 3
        rubbish = [bytes([i]) * s.followed.sealed_size for i in range(5)]
        flooder = [f"2001:db8:0:7::{i}" for i in range(5)]
        assert [
            (await post_from(s, *one)).status_code for one in zip(flooder, rubbish, strict=True)
        ] == [202] * 3 + [503] * 2
        assert (await post_from(s, "2001:db8:0:8::1", s.sealed(0))).status_code == 202
        assert (await post_from(s, "192.0.2.1", s.sealed(1))).status_code == 202
        # What is there already is not counted, and what could not be written neither.
        again = s.sealed(1)
        for _ in range(4):
            assert (await post_from(s, "192.0.2.1", again)).status_code == 202
        s.spool._db.execute("PRAGMA query_only = ON")
        assert [
            (await post_from(s, "192.0.2.2", s.sealed(i))).status_code for i in range(2, 6)
        ] == [503] * 4
        s.spool._db.execute("PRAGMA query_only = OFF")
        assert (await post_from(s, "192.0.2.2", s.sealed(2))).status_code == 202
        await s.until(900)
        assert not s.followed.sender_quota._counts, "addresses are forgotten with the window"
        assert (await post_from(s, flooder[0], rubbish[4])).status_code == 202

    run(tmp_path, test)


def test_relay_behind_proxy_does_not_limit_senders(tmp_path: Path) -> None:
    async def test(s: Any) -> None:
        s.followed.n_expected = 1
        assert [(await post_from(s, "127.0.0.1", s.sealed(i))).status_code for i in range(2)] == [
            202
        ] * 2
        assert not s.followed.sender_quota._counts

    run(tmp_path, test, sees_senders=False)


def test_relay_answers_unavailable_before_first_poll(tmp_path: Path) -> None:
    """Of a relay that was started while the coordinator is down, participants ask again."""

    async def test(s: Any) -> None:
        s.wire.is_cut = True
        with contextlib.suppress(TransportError):
            await s.following.poll()
        assert read_problem(await s.post(s.sealed(0))) == (503, "HOST-004")
        assert read_problem(await s.http.get(RELAYING)) == (503, "HOST-004")
        s.wire.is_cut = False
        await s.following.poll()
        assert (await s.post(s.sealed(0))).status_code == 202
        assert read_problem(await s.post(s.sealed(0), study="00" * 32)) == (404, "RELAY-001")

    run(tmp_path, test, has_looked=False)


def test_relay_does_not_acknowledge_if_spool_fails(tmp_path: Path) -> None:
    async def test(s: Any) -> None:
        s.spool._db.execute("PRAGMA query_only = ON")
        refused = await s.post(s.sealed(0))
        assert read_problem(refused) == (503, "HOST-004")
        assert "relay" in refused.json()["title"] and "relay.db" not in refused.text
        s.spool._db.execute("PRAGMA query_only = OFF")
        assert (await s.post(s.sealed(0))).status_code == 202

    run(tmp_path, test)


def request(path: str) -> bytes:
    return bhttp.BinaryRequest("GET", path).to_bytes(1024)


def test_relay_forwards_sealed_request_and_response(tmp_path: Path) -> None:
    async def test(s: Any) -> None:
        sealed, opener = ohttp.encapsulate(s.manifest.gateway_key, request(STUDIES))
        headers = {
            "content-type": OHTTP_REQUEST,
            "x-forwarded-for": "192.0.2.7",
            "cookie": "a=b",
            "user-agent": "mine",
        }
        found = await s.http.post(REQUESTS, content=sealed, headers=headers)
        assert (found.status_code, found.headers["content-type"]) == (200, OHTTP_RESPONSE)
        answer = bhttp.BinaryResponse.from_bytes(opener.open(found.content))
        assert answer.status == 200 and s.digest.encode() in answer.body
        forwarded = s.wire.requests[-1]
        assert forwarded.content == sealed
        assert set(forwarded.headers) == {
            "host",
            "user-agent",
            "accept",
            "accept-encoding",
            "content-type",
            "content-length",
        }
        assert forwarded.headers["user-agent"] == "shoal"

    run(tmp_path, test)


def test_relay_reports_failed_forwarding(tmp_path: Path) -> None:
    async def test(s: Any) -> None:
        async def post(body: bytes, kind: str = OHTTP_REQUEST) -> httpx2.Response:
            found = await s.http.post(REQUESTS, content=body, headers={"content-type": kind})
            assert isinstance(found, httpx2.Response)
            return found

        assert read_problem(await post(b"rubbish")) == (400, "CRYPTO-001")
        assert read_problem(await post(b"rubbish", "text/plain")) == (415, "HOST-006")
        s.wire.is_cut = True
        sealed, _ = ohttp.encapsulate(s.manifest.gateway_key, request(STUDIES))
        refused = await post(sealed)
        assert read_problem(refused) == (503, "HOST-004") and "retry-after" in refused.headers

    run(tmp_path, test)


def test_relay_stores_nothing_about_senders(tmp_path: Path) -> None:
    said = io.StringIO()

    async def test(s: Any) -> None:
        marks = {
            "x-mark": "a mark of the sender",
            "user-agent": "a mark of the sender",
            "cookie": "mark=a mark of the sender",
        }
        sealed, _ = ohttp.encapsulate(s.manifest.gateway_key, request(STUDIES))
        for path, body in (
            (f"{PACKETS}/{s.digest}", s.sealed(0)),
            (REQUESTS, sealed),
            (REQUESTS, b"a mark of the sender"),
        ):
            await s.http.post(path, content=body, headers={"content-type": OHTTP_REQUEST, **marks})
        s.spool.rewrite_sorted()
        for file in tmp_path.glob("relay.db*"):
            data = file.read_bytes()
            assert b"a mark" not in data and sealed not in data and b"127.0.0.1" not in data

    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        run(tmp_path, test)
    assert said.getvalue() == ""


def test_relay_writes_concurrent_packets_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    put = Spool.put
    monkeypatch.setattr(
        Spool, "put", lambda self, packets: calls.append(len(packets)) or put(self, packets)
    )

    async def test(s: Any) -> None:
        sealed = [s.sealed(i) for i in range(12)]
        answers = await asyncio.gather(*(s.post(one) for one in sealed))
        assert {one.status_code for one in answers} == {202}
        assert sum(calls) == 12 and len(calls) < 12

    run(tmp_path, test)
    with Spool(tmp_path / "relay.db", SystemEntropy()) as spool:
        assert len(spool.list_studies()) == 1


def test_relay_answers_waiting_requests_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(s: Any) -> None:
        is_asked = asyncio.Event()

        async def never(_: bytes) -> bytes:
            is_asked.set()
            return await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(s.remote, "forward_request", never)
        with ThreadPoolExecutor(1) as executor:
            handlers = RelayHandlers(s.following, s.remote, s.spool, s.clock, executor)
            transport = httpx2.ASGITransport(app=make_app(handlers))
            async with httpx2.AsyncClient(transport=transport, base_url=RELAY) as http:
                waiting = asyncio.create_task(
                    http.post(REQUESTS, content=b"sealed", headers={"content-type": OHTTP_REQUEST})
                )
                await is_asked.wait()
                handlers.stop()
                assert read_problem(await waiting) == (503, "HOST-004")

    run(tmp_path, test)
