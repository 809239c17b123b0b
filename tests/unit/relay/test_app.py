"""What a relay answers: packets of one size once, requests forwarded and answered, and nothing of who asks kept or passed on."""

from __future__ import annotations

import asyncio
import contextlib
import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from relay_cases import RELAY, TO, scene
from shoal.entropy import SystemEntropy
from shoal.errors import TransportError
from shoal.relay import following
from shoal.relay.app import KEPT_FOR, Desk, make_app
from shoal.relay.spool import Spool
from shoal.transport import bhttp, ohttp
from shoal.transport.forms import Relaying, from_json
from shoal.transport.packets import packet_size
from shoal.transport.routes import KEYS, OPENED, PACKETS, PROBLEM, RELAYING, REQUESTS, SEALED, STUDIES


def problem_of(answer: httpx2.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == PROBLEM
    found = answer.json()
    assert found["status"] == answer.status_code and found["title"]
    return answer.status_code, found["code"]


async def post_from(s: Any, address: str, sealed: bytes) -> httpx2.Response:
    """Post a packet from an address."""
    transport = httpx2.ASGITransport(app=s.app, client=(address, 1234))
    async with httpx2.AsyncClient(transport=transport, base_url=RELAY) as http:
        return await http.post(f"{PACKETS}/{s.digest}", content=sealed, headers={"content-type": SEALED})


def run(folder: Path, test: Any, **options: Any) -> None:
    async def main() -> None:
        async with scene(folder, **options) as s:
            await test(s)

    asyncio.run(main())


def test_what_is_served_is_told(tmp_path: Path) -> None:
    async def test(s: Any) -> None:
        found = await s.http.get(RELAYING)
        assert from_json(found.content, Relaying) == Relaying(to=TO, studies={s.digest: packet_size(s.manifest)})
        assert found.headers["cache-control"] == "no-store"
        assert (await s.http.get("/healthz")).json() == {"status": "ok"}

    run(tmp_path, test)


def test_the_gateways_key_is_one_for_all(tmp_path: Path) -> None:
    async def test(s: Any) -> None:
        answers = [await s.http.get(KEYS) for _ in range(3)]
        assert {one.content for one in answers} == {s.office.gateway.configuration()}
        assert answers[0].headers["content-type"] == ohttp.KEYS
        assert sum(one.url.path == KEYS for one in s.wire.requests) == 1
        s.wire.is_cut = True
        assert (await s.http.get(KEYS)).content == answers[0].content
        s.clock.advance(KEPT_FOR.total_seconds())
        assert problem_of(await s.http.get(KEYS)) == (503, "HOST-004")

    run(tmp_path, test)


def test_a_packet_is_kept_once(tmp_path: Path) -> None:
    async def test(s: Any) -> None:
        sealed = s.sealed(0)
        answers = [await s.post(sealed), await s.post(sealed), await s.post(s.sealed(1))]
        assert {(one.status_code, one.content, tuple(sorted(one.headers.items()))) for one in answers} == {
            (202, b"", (("cache-control", "no-store"), ("content-length", "0"), ("x-content-type-options", "nosniff")))
        }
        assert s.spool.n_waiting(s.digest, 0) == 2

    run(tmp_path, test)


def test_what_is_no_packet_is_refused(tmp_path: Path) -> None:
    async def test(s: Any) -> None:
        sealed = s.sealed(0)
        assert problem_of(await s.post(sealed[:-1])) == (400, "RELAY-001")
        assert problem_of(await s.post(b"")) == (400, "RELAY-001")
        assert problem_of(await s.post(sealed + b"x")) == (400, "RELAY-001")
        assert problem_of(await s.post(bytes(1 << 20))) == (400, "RELAY-001")
        assert problem_of(await s.post(sealed, kind="text/plain")) == (415, "HOST-006")
        assert problem_of(await s.post(sealed, study="00" * 32)) == (404, "RELAY-001")
        assert problem_of(await s.post(sealed, study="x")) == (404, "HOST-001")
        assert problem_of(await s.post(sealed, study=f"{s.digest}?x=1")) == (400, "HOST-006")
        assert problem_of(await s.http.get(f"{PACKETS}/{s.digest}")) == (405, "HOST-006")
        assert problem_of(await s.http.get("/v1/studies")) == (404, "HOST-001")
        assert s.spool.n_waiting(s.digest, 0) == 0

    run(tmp_path, test)


def test_a_flood_ends_at_what_a_study_may_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(s: Any) -> None:
        s.followed.n_expected = 2
        monkeypatch.setattr(following, "ROOM", 1)
        sealed = [s.sealed(i) for i in range(3)]
        assert [(await s.post(one)).status_code for one in sealed[:2]] == [202, 202]
        refused = await s.post(sealed[2])
        assert problem_of(refused) == (503, "HOST-004") and int(refused.headers["retry-after"]) >= 1
        await s.until(700)
        assert s.wire.batches() == []

    run(tmp_path, test)


def test_one_sender_cannot_fill_the_spool(tmp_path: Path) -> None:
    """Rubbish from one network, as much as the study expects in all, and no more; others are heard, and those of the next phase."""

    async def test(s: Any) -> None:
        s.followed.n_expected = 3
        rubbish = [bytes([i]) * s.followed.sealed_size for i in range(5)]
        flooder = [f"2001:db8:0:7::{i}" for i in range(5)]
        assert [(await post_from(s, *one)).status_code for one in zip(flooder, rubbish, strict=True)] == [202] * 3 + [503] * 2
        assert (await post_from(s, "2001:db8:0:8::1", s.sealed(0))).status_code == 202
        assert (await post_from(s, "192.0.2.1", s.sealed(1))).status_code == 202
        # What is there already is not counted, and what could not be written neither.
        again = s.sealed(1)
        for _ in range(4):
            assert (await post_from(s, "192.0.2.1", again)).status_code == 202
        s.spool._db.execute("PRAGMA query_only = ON")
        assert [(await post_from(s, "192.0.2.2", s.sealed(i))).status_code for i in range(2, 6)] == [503] * 4
        s.spool._db.execute("PRAGMA query_only = OFF")
        assert (await post_from(s, "192.0.2.2", s.sealed(2))).status_code == 202
        await s.until(900)
        assert not s.followed.senders._counts, "addresses are forgotten with the window"
        assert (await post_from(s, flooder[0], rubbish[4])).status_code == 202

    run(tmp_path, test)


def test_where_something_stands_in_front_senders_are_not_counted(tmp_path: Path) -> None:
    async def test(s: Any) -> None:
        s.followed.n_expected = 1
        assert [(await post_from(s, "127.0.0.1", s.sealed(i))).status_code for i in range(2)] == [202] * 2
        assert not s.followed.senders._counts

    run(tmp_path, test, sees_senders=False)


def test_before_the_coordinator_has_answered_nothing_is_said_to_be_unknown(tmp_path: Path) -> None:
    """Of a relay that was started while the coordinator is down, participants ask again."""

    async def test(s: Any) -> None:
        s.wire.is_cut = True
        with contextlib.suppress(TransportError):
            await s.following.look()
        assert problem_of(await s.post(s.sealed(0))) == (503, "HOST-004")
        assert problem_of(await s.http.get(RELAYING)) == (503, "HOST-004")
        s.wire.is_cut = False
        await s.following.look()
        assert (await s.post(s.sealed(0))).status_code == 202
        assert problem_of(await s.post(s.sealed(0), study="00" * 32)) == (404, "RELAY-001")

    run(tmp_path, test, has_looked=False)


def test_a_spool_that_fails_acknowledges_nothing(tmp_path: Path) -> None:
    async def test(s: Any) -> None:
        s.spool._db.execute("PRAGMA query_only = ON")
        refused = await s.post(s.sealed(0))
        assert problem_of(refused) == (503, "HOST-004")
        assert "relay" in refused.json()["title"] and "relay.db" not in refused.text
        s.spool._db.execute("PRAGMA query_only = OFF")
        assert (await s.post(s.sealed(0))).status_code == 202

    run(tmp_path, test)


def request(path: str) -> bytes:
    return bhttp.Request("GET", path).to_bytes(1024)


def test_a_sealed_request_is_forwarded_and_answered(tmp_path: Path) -> None:
    async def test(s: Any) -> None:
        sealed, opener = ohttp.encapsulate(s.manifest.gateway_key, request(STUDIES))
        headers = {"content-type": SEALED, "x-forwarded-for": "192.0.2.7", "cookie": "a=b", "user-agent": "mine"}
        found = await s.http.post(REQUESTS, content=sealed, headers=headers)
        assert (found.status_code, found.headers["content-type"]) == (200, OPENED)
        answer = bhttp.Answer.from_bytes(opener.open(found.content))
        assert answer.status == 200 and s.digest.encode() in answer.body
        forwarded = s.wire.requests[-1]
        assert forwarded.content == sealed
        assert set(forwarded.headers) == {"host", "user-agent", "accept", "accept-encoding", "content-type", "content-length"}
        assert forwarded.headers["user-agent"] == "shoal"

    run(tmp_path, test)


def test_what_cannot_be_forwarded_is_said(tmp_path: Path) -> None:
    async def test(s: Any) -> None:
        async def post(body: bytes, kind: str = SEALED) -> httpx2.Response:
            found = await s.http.post(REQUESTS, content=body, headers={"content-type": kind})
            assert isinstance(found, httpx2.Response)
            return found

        assert problem_of(await post(b"rubbish")) == (400, "CRYPTO-001")
        assert problem_of(await post(b"rubbish", "text/plain")) == (415, "HOST-006")
        s.wire.is_cut = True
        sealed, _ = ohttp.encapsulate(s.manifest.gateway_key, request(STUDIES))
        refused = await post(sealed)
        assert problem_of(refused) == (503, "HOST-004") and "retry-after" in refused.headers

    run(tmp_path, test)


def test_nothing_of_a_sender_is_left_anywhere(tmp_path: Path) -> None:
    said = io.StringIO()

    async def test(s: Any) -> None:
        marks = {"x-mark": "a mark of the sender", "user-agent": "a mark of the sender", "cookie": "mark=a mark of the sender"}
        sealed, _ = ohttp.encapsulate(s.manifest.gateway_key, request(STUDIES))
        for path, body in ((f"{PACKETS}/{s.digest}", s.sealed(0)), (REQUESTS, sealed), (REQUESTS, b"a mark of the sender")):
            await s.http.post(path, content=body, headers={"content-type": SEALED, **marks})
        s.spool.tidy()
        for file in tmp_path.glob("relay.db*"):
            data = file.read_bytes()
            assert b"a mark" not in data and sealed not in data and b"127.0.0.1" not in data

    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        run(tmp_path, test)
    assert said.getvalue() == ""


def test_packets_at_once_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    put = Spool.put
    monkeypatch.setattr(Spool, "put", lambda self, packets: calls.append(len(packets)) or put(self, packets))

    async def test(s: Any) -> None:
        sealed = [s.sealed(i) for i in range(12)]
        answers = await asyncio.gather(*(s.post(one) for one in sealed))
        assert {one.status_code for one in answers} == {202}
        assert sum(calls) == 12 and len(calls) < 12

    run(tmp_path, test)
    with Spool(tmp_path / "relay.db", SystemEntropy()) as spool:
        assert len(spool.studies()) == 1


def test_who_waits_for_an_answer_is_told_when_the_relay_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(s: Any) -> None:
        is_asked = asyncio.Event()

        async def never(_: bytes) -> bytes:
            is_asked.set()
            return await asyncio.get_running_loop().create_future()

        monkeypatch.setattr(s.remote, "forward", never)
        with ThreadPoolExecutor(1) as executor:
            desk = Desk(s.following, s.remote, s.spool, s.clock, executor)
            transport = httpx2.ASGITransport(app=make_app(desk))
            async with httpx2.AsyncClient(transport=transport, base_url=RELAY) as http:
                waiting = asyncio.create_task(http.post(REQUESTS, content=b"sealed", headers={"content-type": SEALED}))
                await is_asked.wait()
                desk.stop()
                assert problem_of(await waiting) == (503, "HOST-004")

    run(tmp_path, test)
