"""DDML studies of a worker: end of a study, upkeep, and admission of keys."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.clock import ManualClock, to_milliseconds
from shoal.coordinator.ddml.admission import KNOWN_MILLISECONDS
from shoal.coordinator.ddml.instances.base import (
    InstanceStore,
    PendingUpdate,
    ScrubOutcome,
    missing_instances_error,
)
from shoal.coordinator.ddml.instances.memory import MemoryInstanceStore
from shoal.coordinator.ddml.instances.sqlite import SqliteInstanceStore
from shoal.coordinator.ddml.studies import TIDY_MILLISECONDS, DDMLStudies, DDMLStudy
from shoal.coordinator.store.base import NewEnrolment, Store, StudyOutcome, StudyRecord
from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.protocols.ddml.model import from_plain
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.starters import read_starter
from shoal.transport.api import study_route
from shoal.transport.signing import sign_request
from tests.support.ddml import PATIENCE, improved, make_manifest, open_sqlite, published


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


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


async def entry_of(devices: DDMLStudies, record: StudyRecord) -> DDMLStudy:
    entry = await devices.open_study(record.digest)
    assert entry is not None
    return entry


def is_over(entry: DDMLStudy) -> bool:
    return entry.is_over


async def send(entry: DDMLStudy, entropy: SeededEntropy, n: int) -> None:
    for _ in range(n):
        await entry.update("", improved(b"".join(await entry.draw()), entropy), None)


async def send_signed(
    entry: DDMLStudy,
    who: Identity,
    number: int,
    body: bytes,
    clock: ManualClock,
    entropy: SeededEntropy,
) -> None:
    target = f"{study_route(entry.digest, 'update')}?number={number}"
    await entry.update(
        target, body, sign_request(who, "POST", target, body, to_milliseconds(clock.now()), entropy)
    )


def test_study_is_done_after_expected_updates(
    store: Store, models: InstanceStore, clock: ManualClock, entropy: SeededEntropy
) -> None:
    record = published(store, make_manifest("open", size=10), clock)

    async def main() -> StudyOutcome | None:
        devices = DDMLStudies(store, models, clock, entropy)
        assert await devices.count_merged(record.digest) == 0
        entry = await entry_of(devices, record)
        await send(entry, entropy, 19)
        assert await devices.count_merged(record.digest) == 19
        assert await devices.end_if_due(record) is None
        drawn = b"".join(await entry.draw())
        await entry.update("", improved(drawn, entropy)[:-1], None)
        await send(entry, entropy, 1)
        assert is_over(entry)
        await entry.update("", improved(drawn, entropy), None)
        with pytest.raises(RemoteProtocolError, match="has ended"):
            await entry.draw()
        await devices.run_upkeep()
        ending = await devices.end_if_due(record)
        await devices.stop()
        return ending

    ending = asyncio.run(main())
    assert ending is not None
    assert ending.status == "done"
    assert ending.result is not None
    result = json.loads(ending.result)
    assert result["counts"] == {"merged": 20, "refused": {"MSG-005": 1, "HOST-002": 1}}
    assert from_plain(result["model"]).weights.shape == (1, 2)


@pytest.mark.parametrize(("n", "status"), [(9, "failed"), (10, "done")])
def test_study_ends_after_timeout(
    n: int,
    status: str,
    store: Store,
    models: InstanceStore,
    clock: ManualClock,
    entropy: SeededEntropy,
) -> None:
    record = published(store, make_manifest("open"), clock)

    async def main() -> StudyOutcome | None:
        devices = DDMLStudies(store, models, clock, entropy)
        entry = await entry_of(devices, record)
        await send(entry, entropy, n)
        clock.advance(PATIENCE / 1000 - 0.001)
        assert await devices.end_if_due(record) is None
        assert not is_over(entry)
        clock.advance(0.001)
        ending = await devices.end_if_due(record)
        assert is_over(entry)
        await devices.stop()
        return ending

    ending = asyncio.run(main())
    assert ending is not None
    assert ending.status == status
    if status == "failed":
        assert ending.reason is not None
        assert "9 updates were merged; the study needs 10" in ending.reason


def test_worker_without_news_merges_nothing_after_end(
    tmp_path: Path, clock: ManualClock, entropy: SeededEntropy
) -> None:
    path = tmp_path / "coordinator.db"
    with (
        open_sqlite(tmp_path) as one,
        open_sqlite(tmp_path) as two,
        SqliteInstanceStore(path) as here,
        SqliteInstanceStore(path) as there,
    ):
        record = published(one, make_manifest("open"), clock)

        async def main() -> None:
            ending, late = (
                DDMLStudies(one, here, clock, entropy),
                DDMLStudies(two, there, clock, entropy),
            )
            entry, unaware = await entry_of(ending, record), await entry_of(late, record)
            await send(entry, entropy, 10)
            clock.advance(PATIENCE / 1000)
            ended = await ending.end_if_due(record)
            assert ended is not None
            before = here.load_instances(record.digest).tolist()
            await send(unaware, entropy, 3)
            assert (
                there.count_merged(record.digest),
                there.load_instances(record.digest).tolist(),
            ) == (10, before)
            assert not is_over(unaware)
            one.end(record.digest, ended)
            await late.run_upkeep()
            assert is_over(unaware)
            await asyncio.gather(ending.stop(), late.stop())

        asyncio.run(main())
        assert one.count_totals(record.digest).refused == {"stale": 3}


def test_closed_study_merges_nothing(
    tmp_path: Path, clock: ManualClock, entropy: SeededEntropy
) -> None:
    path = tmp_path / "coordinator.db"
    with (
        open_sqlite(tmp_path) as store,
        SqliteInstanceStore(path) as here,
        SqliteInstanceStore(path) as there,
    ):
        record = published(store, make_manifest("open"), clock)

        async def main() -> None:
            aware, unaware = (
                DDMLStudies(store, here, clock, entropy),
                DDMLStudies(store, there, clock, entropy),
            )
            entry, late = await entry_of(aware, record), await entry_of(unaware, record)
            body = improved(b"".join(await entry.draw()), entropy)
            await entry.update("", body, None)
            assert here.has_update(record.digest, body[:16], 0)
            store.end(record.digest, StudyOutcome("closed"))
            await aware.check_status("another")
            assert not is_over(entry)
            await aware.check_status(record.digest)
            assert is_over(entry)
            assert not here.has_update(record.digest, body[:16], 0)
            await send(late, entropy, 2)
            assert there.count_merged(record.digest) == 1
            await asyncio.gather(aware.stop(), unaware.stop())

        asyncio.run(main())


class Watched(MemoryInstanceStore):
    def __init__(self) -> None:
        super().__init__()
        self.n_scrubbed = 0

    def scrub(self, seconds: float = 0.0) -> ScrubOutcome:
        self.n_scrubbed += 1
        return super().scrub(seconds)


def test_upkeep_tidies_once_a_minute_during_merges(
    store: Store, clock: ManualClock, entropy: SeededEntropy
) -> None:
    record, models = published(store, make_manifest("open"), clock), Watched()

    async def main() -> None:
        devices = DDMLStudies(store, models, clock, entropy)
        entry = await entry_of(devices, record)
        begun = models.n_scrubbed
        await send(entry, entropy, 1)
        for seconds, n in [(0, 0), (TIDY_MILLISECONDS / 1000 - 1, 0), (1, 1), (1000, 1)]:
            clock.advance(seconds)
            await devices.run_upkeep()
            assert models.n_scrubbed == begun + n
        await send(entry, entropy, 1)
        store.end(record.digest, StudyOutcome("closed"))
        for _ in range(2):
            await devices.run_upkeep()
            assert models.n_scrubbed == begun + 2
        await devices.stop()

    asyncio.run(main())


class Broken(MemoryInstanceStore):
    """Has lost one study."""

    lost = ""

    def count_merged(self, study: str) -> int:
        if study == self.lost:
            raise missing_instances_error(study)
        return super().count_merged(study)


def test_upkeep_continues_after_lost_study(
    store: Store, clock: ManualClock, entropy: SeededEntropy
) -> None:
    one, two, models = (
        published(store, make_manifest("open"), clock),
        published(store, make_manifest("open", size=10), clock),
        Broken(),
    )

    async def main() -> None:
        devices = DDMLStudies(store, models, clock, entropy)
        first, second = await entry_of(devices, one), await entry_of(devices, two)
        models.lost = one.digest
        for record in (one, two):
            store.end(record.digest, StudyOutcome("closed"))
        await devices.run_upkeep()
        assert is_over(second)
        models.lost = ""
        await devices.run_upkeep()
        assert is_over(first)
        await devices.stop()

    asyncio.run(main())


def test_name_of_left_key_is_cached_for_ten_seconds(
    store: Store, clock: ManualClock, entropy: SeededEntropy
) -> None:
    record, models = published(store, make_manifest("signed"), clock), MemoryInstanceStore()
    identity = Identity.from_seed(entropy.bytes(32))
    store.enrol(record.digest, NewEnrolment(identity.public_key))

    async def main() -> None:
        devices = DDMLStudies(store, models, clock, entropy)
        entry = await entry_of(devices, record)

        async def update(number: int) -> None:
            body = improved(b"".join(await entry.draw()), entropy)
            await send_signed(entry, identity, number, body, clock, entropy)

        await update(0)
        store.leave(record.digest, identity.public_key, bytes(16), 1 << 50)
        clock.advance(KNOWN_MILLISECONDS / 1000 - 1)
        await update(1)
        clock.advance(1)
        with pytest.raises(RemoteProtocolError, match="not enrolled"):
            await update(1)
        await devices.stop()

    asyncio.run(main())
    assert models.count_merged(record.digest) == 2


def test_key_sends_allowed_number_of_updates(
    store: Store, models: InstanceStore, clock: ManualClock, entropy: SeededEntropy
) -> None:
    record = published(store, make_manifest("signed"), clock)
    identity = Identity.from_seed(entropy.bytes(32))
    store.enrol(record.digest, NewEnrolment(identity.public_key))

    async def main() -> None:
        devices = DDMLStudies(store, models, clock, entropy)
        entry = await entry_of(devices, record)
        codes = []
        for number, n in [(0, 2), (0, 1), (1, 1), (2, 1), (1, 1)]:
            body = improved(b"".join(await entry.draw()), entropy)
            for _ in range(n):
                try:
                    await send_signed(entry, identity, number, body, clock, entropy)
                except RemoteProtocolError as error:
                    codes.append(error.code)
        assert codes == ["HOST-005", "HOST-006", "HOST-005"]
        await devices.stop()

    asyncio.run(main())
    assert models.count_merged(record.digest) == 2


def test_rejected_update_leaves_its_number_free(
    store: Store, models: InstanceStore, clock: ManualClock, entropy: SeededEntropy
) -> None:
    record = published(store, make_manifest("signed"), clock)
    identity = Identity.from_seed(entropy.bytes(32))
    store.enrol(record.digest, NewEnrolment(identity.public_key))

    async def main() -> None:
        devices = DDMLStudies(store, models, clock, entropy)
        entry = await entry_of(devices, record)
        body = improved(b"".join(await entry.draw()), entropy)
        for bad, code in (
            (body[:16] + (1).to_bytes(8, "little") + body[24:], "DDML-001"),
            (body[:24] + bytes([0, 0, 0, 128]) + body[28:], "MSG-005"),
            (body[:-1], "MSG-005"),
        ):
            with pytest.raises(RemoteProtocolError, match=code):
                await send_signed(entry, identity, 0, bad, clock, entropy)
        await send_signed(entry, identity, 0, body, clock, entropy)
        await devices.stop()

    asyncio.run(main())
    assert models.count_merged(record.digest) == 1


def test_epoch_of_other_worker_is_accepted(
    tmp_path: Path, clock: ManualClock, entropy: SeededEntropy
) -> None:
    path = tmp_path / "coordinator.db"
    with (
        open_sqlite(tmp_path) as store,
        SqliteInstanceStore(path) as here,
        SqliteInstanceStore(path) as there,
    ):
        record = published(store, make_manifest("signed"), clock)
        identity = Identity.from_seed(entropy.bytes(32))
        store.enrol(record.digest, NewEnrolment(identity.public_key))

        async def main() -> None:
            busy, idle = (
                DDMLStudies(store, here, clock, entropy),
                DDMLStudies(store, there, clock, entropy),
            )
            entry, late = await entry_of(busy, record), await entry_of(idle, record)
            n = entry.server.params.epoch_updates
            slots = here.load_instances(record.digest)
            here.merge_many(
                record.digest,
                [
                    PendingUpdate(i % 5, entropy.bytes(16), 0, slots[i % 5].tobytes())
                    for i in range(n)
                ],
                1.0,
            )
            body = improved(b"".join(await entry.draw()), entropy)
            assert (body[16], late.server.n_merged) == (1, 0)
            await send_signed(late, identity, 0, body, clock, entropy)
            assert there.count_merged(record.digest) == n + 1
            await asyncio.gather(busy.stop(), idle.stop())

        asyncio.run(main())


def test_store_contains_neither_tickets_nor_bodies(
    tmp_path: Path, clock: ManualClock, entropy: SeededEntropy
) -> None:
    ticket = entropy.bytes(32)
    with open_sqlite(tmp_path) as store:
        record = published(store, make_manifest("token"), clock)
        store.enrol(
            record.digest,
            NewEnrolment(
                Identity.from_seed(entropy.bytes(32)).public_key,
                ticket=hashlib.sha256(ticket).digest(),
            ),
        )

        async def main() -> bytes:
            devices = DDMLStudies(store, MemoryInstanceStore(), clock, entropy)
            entry = await entry_of(devices, record)
            body = improved(b"".join(await entry.draw()), entropy)
            await entry.update("", body, f"{ticket.hex()} 0")
            assert entry.server.n_merged == 1
            await devices.stop()
            return body

        body = asyncio.run(main())
        on_disk = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert hashlib.sha256(body).digest() in on_disk
    for secret in (ticket, ticket.hex().encode(), body[:16], body[24:]):
        assert secret not in on_disk


def test_open_study_returns_none_for_other_studies(
    store: Store, clock: ManualClock, entropy: SeededEntropy
) -> None:
    other, anonml = make_manifest("open"), Manifest(parse_study_text(read_starter("anonml")))
    published(store, anonml, clock)

    async def main() -> None:
        devices = DDMLStudies(store, MemoryInstanceStore(), clock, entropy)
        assert await devices.open_study(anonml.digest.hex()) is None
        assert await devices.open_study(other.digest.hex()) is None
        record = published(store, other, clock)
        first, second = await asyncio.gather(*(devices.open_study(record.digest) for _ in range(2)))
        assert first is second
        assert first is not None
        await devices.stop()

    asyncio.run(main())
