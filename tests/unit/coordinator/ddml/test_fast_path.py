"""Draw and update over real HTTP, with each admission and with two workers on one file."""

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

from shoal.clock import ManualClock
from shoal.coordinator.ddml.fast_path import DDMLFastPath
from shoal.coordinator.ddml.instances.base import InstanceStore
from shoal.coordinator.ddml.instances.memory import MemoryInstanceStore
from shoal.coordinator.ddml.instances.redis import RedisInstanceStore
from shoal.coordinator.ddml.instances.sqlite import SqliteInstanceStore
from shoal.coordinator.ddml.studies import DDMLStudies
from shoal.coordinator.store.base import NewEnrolment, Store, StudyOutcome
from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy
from shoal.transport.api import study_route
from shoal.transport.signing import FRESH_SECONDS, sign_request
from tests.support.ddml import draw, improved, make_manifest, open_sqlite, published, served
from tests.support.stores import redis_process

CLOCK = ManualClock()
NOW = int(CLOCK.now().timestamp() * 1000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_sqlite(tmp_path) as opened:
        yield opened


@pytest.fixture(params=["memory", "sqlite"])
def models(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[InstanceStore]:
    with (
        MemoryInstanceStore()
        if request.param == "memory"
        else SqliteInstanceStore(tmp_path / "coordinator.db") as opened
    ):
        yield opened


def is_plain(answer: httpx2.Response) -> bool:
    """An answer that tells nothing but that a request came."""
    told = {name: value for name, value in answer.headers.items() if name != "date"}
    expected = {
        "content-length": "0",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "server": "uvicorn",
    }
    return (answer.status_code, answer.content, told) == (202, b"", expected)


def test_update_of_drawn_instance_is_merged_once(
    store: Store, models: InstanceStore, entropy: SeededEntropy
) -> None:
    record = published(store, make_manifest("open"), CLOCK)
    with served(store, models, CLOCK) as (client, _):
        answer = client.post(study_route(record.digest, "draw"))
        assert answer.headers["content-type"] == "application/octet-stream"
        drawn = answer.content
        shape = models.find_shape(record.digest)
        assert shape is not None
        assert len(drawn) == 8 + 4 * shape[1]
        assert drawn[:8] == bytes(8)
        assert drawn[8:] in [row.tobytes() for row in models.load_instances(record.digest)]
        body = improved(drawn, entropy)
        for _ in range(3):
            assert is_plain(client.post(study_route(record.digest, "update"), content=body))
        assert models.count_merged(record.digest) == 1
        assert is_plain(
            client.post(study_route(record.digest, "update"), content=improved(drawn, entropy))
        )
        assert models.count_merged(record.digest) == 2
    assert store.count_totals(record.digest).refused == {}


def hostile(body: bytes) -> dict[str, bytes]:
    """What an update may be refused for, under what it is counted as."""
    weights = np.frombuffer(body, "<i4", offset=24)
    return {
        "MSG-005": body[:-1],
        "MSG-001": body + bytes(100_000),
        "DDML-001": body[:16] + (1).to_bytes(8, "little") + body[24:],
        "spam": body[:24] + np.full_like(weights, 1 << 30).tobytes(),
    }


def test_anonymous_update_gets_same_response_for_every_outcome(
    store: Store, models: InstanceStore, entropy: SeededEntropy
) -> None:
    record = published(store, make_manifest("open"), CLOCK)
    with served(store, models, CLOCK) as (client, _):
        body = improved(draw(client, record), entropy)
        before = models.load_instances(record.digest).tolist()
        least = np.frombuffer(body, "<i4", offset=24).copy()
        least[0] = -(1 << 31)
        for rubbish in [
            *hostile(body).values(),
            b"",
            body[:24] + least.tobytes(),
            body[:16] + b"\xff" * 8 + body[24:],
        ]:
            assert is_plain(client.post(study_route(record.digest, "update"), content=rubbish))
        assert models.load_instances(record.digest).tolist() == before
        assert is_plain(client.post(study_route(record.digest, "update"), content=body))
        assert models.count_merged(record.digest) == 1
    assert store.count_totals(record.digest).refused == {
        "MSG-005": 3,
        "MSG-001": 1,
        "DDML-001": 2,
        "spam": 1,
    }


def test_body_in_several_chunks_is_one_body(
    store: Store, models: InstanceStore, entropy: SeededEntropy
) -> None:
    record = published(store, make_manifest("open"), CLOCK)
    with served(store, models, CLOCK) as (client, _):
        body = improved(draw(client, record), entropy)
        client.post(
            study_route(record.digest, "update"),
            content=(body[i : i + 7] for i in range(0, len(body), 7)),
        )
        assert models.count_merged(record.digest) == 1
        client.post(
            study_route(record.digest, "update"), content=(bytes(1000) for _ in range(1000))
        )
    assert store.count_totals(record.digest).refused == {"MSG-001": 1}


def test_body_is_not_read_beyond_size_of_update(store: Store, entropy: SeededEntropy) -> None:
    record, n_read, told = published(store, make_manifest("open"), CLOCK), 0, []

    async def receive() -> Message:
        nonlocal n_read
        n_read += 1
        return {"type": "http.request", "body": bytes(10), "more_body": True}

    async def send(message: Message) -> None:
        told.append(message)

    async def main() -> None:
        devices = DDMLStudies(store, MemoryInstanceStore(), CLOCK, entropy)
        scope = {
            "type": "http",
            "method": "POST",
            "path": study_route(record.digest, "update"),
            "query_string": b"",
            "headers": [],
        }
        await DDMLFastPath(devices, _nobody)(scope, receive, send)
        await devices.stop()

    asyncio.run(main())
    # 16 of the id, 8 of the epoch, two weights.
    assert n_read == 4
    assert told[0]["status"] == 202
    assert store.count_totals(record.digest).refused == {"MSG-001": 1}


async def _nobody(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("it is ours")


def test_signed_update_gets_its_outcome(
    store: Store, models: InstanceStore, entropy: SeededEntropy
) -> None:
    record = published(store, make_manifest("signed"), CLOCK)
    identity, stranger = (Identity.from_seed(entropy.bytes(32)) for _ in range(2))
    store.enrol(record.digest, NewEnrolment(identity.public_key))
    target = f"{study_route(record.digest, 'update')}?number=0"

    def send(
        client: httpx2.Client,
        body: bytes,
        by: Identity = identity,
        time: int = NOW,
        signed: bytes | None = None,
    ) -> httpx2.Response:
        header = sign_request(by, "POST", target, body if signed is None else signed, time, entropy)
        return client.post(target, content=body, headers={"Authorization": header})

    with served(store, models, CLOCK) as (client, _):
        body = improved(draw(client, record), entropy)
        refusals = [
            (client.post(target, content=body), 401, "AUTH-001"),
            (send(client, body, signed=body[:-1] + b"x"), 401, "AUTH-002"),
            (send(client, body, time=NOW - 1000 * FRESH_SECONDS - 1), 401, "AUTH-003"),
            (send(client, body, by=stranger), 403, "ENROL-001"),
            *(
                (send(client, sent), 413 if code == "MSG-001" else 400, code)
                for code, sent in hostile(body).items()
                if code != "spam"
            ),
        ]
        for answer, status, code in refusals:
            assert (answer.status_code, answer.json()["code"]) == (status, code)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.headers["cache-control"] == "no-store"
        assert models.count_merged(record.digest) == 0
        # Nothing that was refused has used the number up.
        header = sign_request(identity, "POST", target, body, NOW, entropy)
        for _ in range(2):
            assert is_plain(client.post(target, content=body, headers={"Authorization": header}))
        assert models.count_merged(record.digest) == 1
        target = target.replace("number=0", "number=1")
        # Stale or far away may be honest.
        assert is_plain(send(client, bytes(16) + hostile(body)["spam"][16:]))
    assert store.count_totals(record.digest).refused == {
        **Counter(code for _, _, code in refusals),
        "spam": 1,
    }


def test_ticket_admits_allowed_number_of_updates(
    store: Store, models: InstanceStore, entropy: SeededEntropy
) -> None:
    record = published(store, make_manifest("token"), CLOCK)
    ticket, target = entropy.bytes(32), study_route(record.digest, "update")
    store.enrol(
        record.digest,
        NewEnrolment(
            Identity.from_seed(entropy.bytes(32)).public_key, ticket=hashlib.sha256(ticket).digest()
        ),
    )

    with served(store, models, CLOCK) as (client, _):

        def send(body: bytes, header: str | None) -> int:
            assert is_plain(
                client.post(
                    target, content=body, headers={} if header is None else {"Shoal-Ticket": header}
                )
            )
            return models.count_merged(record.digest)

        first, second, third = (improved(draw(client, record), entropy) for _ in range(3))
        assert [send(first, f"{ticket.hex()} 0") for _ in range(2)] == [1, 1]
        assert send(second, f"{ticket.hex()} 0") == 1
        assert send(second, f"{ticket.hex()} 1") == 2
        strange = [
            f"{ticket.hex()} 2",
            ticket.hex(),
            None,
            f"{entropy.bytes(32).hex()} 0",
            f"{ticket.hex().upper()} 1",
        ]
        assert [send(third, header) for header in strange] == [2] * len(strange)
        twice = [("Shoal-Ticket", f"{ticket.hex()} {number}") for number in (1, 0)]
        assert is_plain(client.post(target, content=second, headers=twice))
    assert store.count_totals(record.digest).refused == {
        "HOST-005": 1,
        "AUTH-001": 5,
        "AUTH-002": 1,
    }


def test_ended_study_rejects_draws_and_updates(
    store: Store, models: InstanceStore, entropy: SeededEntropy
) -> None:
    record = published(store, make_manifest("open"), CLOCK)
    with served(store, models, CLOCK) as (client, _):
        body = improved(draw(client, record), entropy)
    store.end(record.digest, StudyOutcome("closed"))
    with served(store, models, CLOCK) as (client, _):
        answer = client.post(study_route(record.digest, "draw"))
        assert (answer.status_code, answer.json()["code"]) == (410, "HOST-002")
        assert is_plain(client.post(study_route(record.digest, "update"), content=body))
    assert models.count_merged(record.digest) == 0
    assert store.count_totals(record.digest).refused == {"HOST-002": 1}


def test_other_paths_methods_and_studies_are_passed_on(store: Store, models: InstanceStore) -> None:
    record = published(store, make_manifest("open"), CLOCK)
    with served(store, models, CLOCK) as (client, _):
        for method, path in [
            ("GET", study_route(record.digest, "draw")),
            ("POST", study_route(record.digest, "drawn")),
            ("POST", study_route("0" * 64, "draw")),
            ("POST", study_route(record.digest.upper(), "draw")),
        ]:
            assert client.request(method, path).json()["code"] == "HOST-001"


def test_update_is_not_acknowledged_if_store_fails(store: Store, entropy: SeededEntropy) -> None:
    record = published(store, make_manifest("open"), CLOCK)
    target = study_route(record.digest, "update")
    with (
        redis_process("--appendonly", "yes", "--appendfsync", "always") as redis,
        RedisInstanceStore(redis.url) as models,
        served(store, models, CLOCK) as (client, _),
    ):
        body = improved(draw(client, record), entropy)
        redis.kill()
        for answer in [
            client.post(target, content=body),
            client.post(study_route(record.digest, "draw")),
        ]:
            assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (
                503,
                "HOST-004",
                "1",
            )
        redis.start()
        assert is_plain(client.post(target, content=body))
        assert models.count_merged(record.digest) == 1


def test_update_at_two_workers_is_merged_once(tmp_path: Path, entropy: SeededEntropy) -> None:
    path, n = tmp_path / "coordinator.db", 40
    with (
        open_sqlite(tmp_path) as one,
        open_sqlite(tmp_path) as two,
        SqliteInstanceStore(path) as here,
        SqliteInstanceStore(path) as there,
    ):
        record = published(one, make_manifest("open"), CLOCK)
        target = study_route(record.digest, "update")
        with (
            served(one, here, CLOCK) as (first, _),
            served(two, there, CLOCK) as (second, _),
            ThreadPoolExecutor(8) as threads,
        ):
            bodies = [improved(draw(first, record), entropy) for _ in range(n)]
            # Each is sent to both, at about the same time.
            sent = [
                threads.submit(to.post, target, content=body)
                for body in bodies
                for to in (first, second)
            ]
            answers = [one.result() for one in sent]
        assert all(is_plain(answer) for answer in answers)
        assert here.count_merged(record.digest) == n
        assert (
            here.load_instances(record.digest).tolist()
            == there.load_instances(record.digest).tolist()
        )
