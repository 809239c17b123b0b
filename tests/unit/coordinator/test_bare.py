"""Draw and update over real HTTP: every admission, what honest devices send and what others do, and two workers on one file."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import numpy as np
import pytest
from starlette.types import Message, Receive, Scope, Send

from device_cases import draw, improved, manifest_of, open_sqlite, published, served
from model_stores import redis_process
from shoal.clock import ManualClock
from shoal.coordinator.bare import BareDDML
from shoal.coordinator.devices import Devices
from shoal.coordinator.models.base import ModelStore
from shoal.coordinator.models.memory import MemoryModels
from shoal.coordinator.models.redis import RedisModels
from shoal.coordinator.models.sqlite import SqliteModels
from shoal.coordinator.store.base import Ending, Store
from shoal.crypto.roster import Identity
from shoal.entropy import SeededEntropy
from shoal.transport.routes import study_route
from shoal.transport.signing import FRESH_SECONDS, sign

CLOCK = ManualClock()
NOW = int(CLOCK.now().timestamp() * 1000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_sqlite(tmp_path) as opened:
        yield opened


@pytest.fixture(params=["memory", "sqlite"])
def models(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ModelStore]:
    with MemoryModels() if request.param == "memory" else SqliteModels(tmp_path / "coordinator.db") as opened:
        yield opened


def is_plain(answer: httpx2.Response) -> bool:
    """An answer that tells nothing but that a request came."""
    told = {name: value for name, value in answer.headers.items() if name != "date"}
    expected = {"content-length": "0", "cache-control": "no-store", "x-content-type-options": "nosniff", "server": "uvicorn"}
    return (answer.status_code, answer.content, told) == (202, b"", expected)


def test_what_is_drawn_comes_back_and_is_merged_once(store: Store, models: ModelStore, entropy: SeededEntropy) -> None:
    hosted = published(store, manifest_of("open"), CLOCK)
    with served(store, models, CLOCK) as (client, _):
        answer = client.post(study_route(hosted.digest, "draw"))
        assert answer.headers["content-type"] == "application/octet-stream"
        drawn = answer.content
        shape = models.shape(hosted.digest)
        assert shape is not None
        assert len(drawn) == 8 + 4 * shape[1]
        assert drawn[:8] == bytes(8)
        assert drawn[8:] in [row.tobytes() for row in models.all_instances(hosted.digest)]
        body = improved(drawn, entropy)
        for _ in range(3):
            assert is_plain(client.post(study_route(hosted.digest, "update"), content=body))
        assert models.n_merged(hosted.digest) == 1
        assert is_plain(client.post(study_route(hosted.digest, "update"), content=improved(drawn, entropy)))
        assert models.n_merged(hosted.digest) == 2
    assert store.totals(hosted.digest).refused == {}


def hostile(body: bytes) -> dict[str, bytes]:
    """What an update may be refused for, under what it is counted as."""
    weights = np.frombuffer(body, "<i4", offset=24)
    return {
        "MSG-005": body[:-1],
        "MSG-001": body + bytes(100_000),
        "DDML-001": body[:16] + (1).to_bytes(8, "little") + body[24:],
        "spam": body[:24] + np.full_like(weights, 1 << 30).tobytes(),
    }


def test_who_sends_anonymously_is_told_nothing(store: Store, models: ModelStore, entropy: SeededEntropy) -> None:
    hosted = published(store, manifest_of("open"), CLOCK)
    with served(store, models, CLOCK) as (client, _):
        body = improved(draw(client, hosted), entropy)
        before = models.all_instances(hosted.digest).tolist()
        least = np.frombuffer(body, "<i4", offset=24).copy()
        least[0] = -(1 << 31)
        for rubbish in [*hostile(body).values(), b"", body[:24] + least.tobytes(), body[:16] + b"\xff" * 8 + body[24:]]:
            assert is_plain(client.post(study_route(hosted.digest, "update"), content=rubbish))
        assert models.all_instances(hosted.digest).tolist() == before
        assert is_plain(client.post(study_route(hosted.digest, "update"), content=body))
        assert models.n_merged(hosted.digest) == 1
    assert store.totals(hosted.digest).refused == {"MSG-005": 3, "MSG-001": 1, "DDML-001": 2, "spam": 1}


def test_a_body_that_comes_in_pieces_is_one_body(store: Store, models: ModelStore, entropy: SeededEntropy) -> None:
    hosted = published(store, manifest_of("open"), CLOCK)
    with served(store, models, CLOCK) as (client, _):
        body = improved(draw(client, hosted), entropy)
        client.post(study_route(hosted.digest, "update"), content=(body[i : i + 7] for i in range(0, len(body), 7)))
        assert models.n_merged(hosted.digest) == 1
        client.post(study_route(hosted.digest, "update"), content=(bytes(1000) for _ in range(1000)))
    assert store.totals(hosted.digest).refused == {"MSG-001": 1}


def test_no_more_is_read_than_an_update_has(store: Store, entropy: SeededEntropy) -> None:
    hosted, n_read, told = published(store, manifest_of("open"), CLOCK), 0, []

    async def receive() -> Message:
        nonlocal n_read
        n_read += 1
        return {"type": "http.request", "body": bytes(10), "more_body": True}

    async def send(message: Message) -> None:
        told.append(message)

    async def main() -> None:
        devices = Devices(store, MemoryModels(), CLOCK, entropy)
        scope = {"type": "http", "method": "POST", "path": study_route(hosted.digest, "update"), "query_string": b"", "headers": []}
        await BareDDML(devices, _nobody)(scope, receive, send)
        await devices.stop()

    asyncio.run(main())
    # 16 of the id, 8 of the epoch, two weights.
    assert n_read == 4
    assert told[0]["status"] == 202
    assert store.totals(hosted.digest).refused == {"MSG-001": 1}


async def _nobody(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("it is ours")


def test_a_known_sender_is_told(store: Store, models: ModelStore, entropy: SeededEntropy) -> None:
    hosted = published(store, manifest_of("signed"), CLOCK)
    identity, stranger = (Identity.from_seed(entropy.bytes(32)) for _ in range(2))
    store.enrol(hosted.digest, identity.public, None, None, None)
    target = f"{study_route(hosted.digest, 'update')}?number=0"

    def send(client: httpx2.Client, body: bytes, by: Identity = identity, time: int = NOW, signed: bytes | None = None) -> httpx2.Response:
        header = sign(by, "POST", target, body if signed is None else signed, time, entropy)
        return client.post(target, content=body, headers={"Authorization": header})

    with served(store, models, CLOCK) as (client, _):
        body = improved(draw(client, hosted), entropy)
        refusals = [
            (client.post(target, content=body), 401, "AUTH-001"),
            (send(client, body, signed=body[:-1] + b"x"), 401, "AUTH-002"),
            (send(client, body, time=NOW - 1000 * FRESH_SECONDS - 1), 401, "AUTH-003"),
            (send(client, body, by=stranger), 403, "ENROL-001"),
            *((send(client, sent), 413 if code == "MSG-001" else 400, code) for code, sent in hostile(body).items() if code != "spam"),
        ]
        for answer, status, code in refusals:
            assert (answer.status_code, answer.json()["code"]) == (status, code)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["cache-control"] == "no-store"
        assert models.n_merged(hosted.digest) == 0
        # Nothing that was refused has used the number up.
        header = sign(identity, "POST", target, body, NOW, entropy)
        for _ in range(2):
            assert is_plain(client.post(target, content=body, headers={"Authorization": header}))
        assert models.n_merged(hosted.digest) == 1
        target = target.replace("number=0", "number=1")
        # Stale or far away may be honest.
        assert is_plain(send(client, bytes(16) + hostile(body)["spam"][16:]))
    assert store.totals(hosted.digest).refused == {**Counter(code for _, _, code in refusals), "spam": 1}


def test_a_ticket_is_good_for_as_many_updates_as_a_device_may_send(store: Store, models: ModelStore, entropy: SeededEntropy) -> None:
    hosted = published(store, manifest_of("token"), CLOCK)
    ticket, target = entropy.bytes(32), study_route(hosted.digest, "update")
    store.enrol(hosted.digest, Identity.from_seed(entropy.bytes(32)).public, None, hashlib.sha256(ticket).digest(), None)

    with served(store, models, CLOCK) as (client, _):

        def send(body: bytes, header: str | None) -> int:
            assert is_plain(client.post(target, content=body, headers={} if header is None else {"Shoal-Ticket": header}))
            return models.n_merged(hosted.digest)

        first, second, third = (improved(draw(client, hosted), entropy) for _ in range(3))
        assert [send(first, f"{ticket.hex()} 0") for _ in range(2)] == [1, 1]
        assert send(second, f"{ticket.hex()} 0") == 1
        assert send(second, f"{ticket.hex()} 1") == 2
        strange = [f"{ticket.hex()} 2", ticket.hex(), None, f"{entropy.bytes(32).hex()} 0", f"{ticket.hex().upper()} 1"]
        assert [send(third, header) for header in strange] == [2] * len(strange)
        twice = [("Shoal-Ticket", f"{ticket.hex()} {number}") for number in (1, 0)]
        assert is_plain(client.post(target, content=second, headers=twice))
    assert store.totals(hosted.digest).refused == {"HOST-005": 1, "AUTH-001": 5, "AUTH-002": 1}


def test_after_the_end_nothing_is_handed_out_or_merged(store: Store, models: ModelStore, entropy: SeededEntropy) -> None:
    hosted = published(store, manifest_of("open"), CLOCK)
    with served(store, models, CLOCK) as (client, _):
        body = improved(draw(client, hosted), entropy)
    store.end(hosted.digest, Ending("closed"))
    with served(store, models, CLOCK) as (client, _):
        answer = client.post(study_route(hosted.digest, "draw"))
        assert (answer.status_code, answer.json()["code"]) == (410, "HOST-002")
        assert is_plain(client.post(study_route(hosted.digest, "update"), content=body))
    assert models.n_merged(hosted.digest) == 0
    assert store.totals(hosted.digest).refused == {"HOST-002": 1}


def test_other_paths_methods_and_studies_are_not_ours(store: Store, models: ModelStore) -> None:
    hosted = published(store, manifest_of("open"), CLOCK)
    with served(store, models, CLOCK) as (client, _):
        for method, path in [
            ("GET", study_route(hosted.digest, "draw")),
            ("POST", study_route(hosted.digest, "drawn")),
            ("POST", study_route("0" * 64, "draw")),
            ("POST", study_route(hosted.digest.upper(), "draw")),
        ]:
            assert client.request(method, path).json()["code"] == "HOST-001"


def test_a_store_that_is_gone_is_no_acknowledgement(store: Store, entropy: SeededEntropy) -> None:
    hosted = published(store, manifest_of("open"), CLOCK)
    target = study_route(hosted.digest, "update")
    with (
        redis_process("--appendonly", "yes", "--appendfsync", "always") as redis,
        RedisModels(redis.url) as models,
        served(store, models, CLOCK) as (client, _),
    ):
        body = improved(draw(client, hosted), entropy)
        redis.kill()
        for answer in [client.post(target, content=body), client.post(study_route(hosted.digest, "draw"))]:
            assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, "HOST-004", "1")
        redis.start()
        assert is_plain(client.post(target, content=body))
        assert models.n_merged(hosted.digest) == 1


def test_what_two_workers_acknowledge_is_merged_once(tmp_path: Path, entropy: SeededEntropy) -> None:
    path, n = tmp_path / "coordinator.db", 40
    with open_sqlite(tmp_path) as one, open_sqlite(tmp_path) as two, SqliteModels(path) as here, SqliteModels(path) as there:
        hosted = published(one, manifest_of("open"), CLOCK)
        target = study_route(hosted.digest, "update")
        with served(one, here, CLOCK) as (first, _), served(two, there, CLOCK) as (second, _), ThreadPoolExecutor(8) as threads:
            bodies = [improved(draw(first, hosted), entropy) for _ in range(n)]
            # Each is sent to both, at about the same time.
            sent = [threads.submit(to.post, target, content=body) for body in bodies for to in (first, second)]
            answers = [one.result() for one in sent]
        assert all(is_plain(answer) for answer in answers)
        assert here.n_merged(hosted.digest) == n
        assert here.all_instances(hosted.digest).tolist() == there.all_instances(hosted.digest).tolist()
