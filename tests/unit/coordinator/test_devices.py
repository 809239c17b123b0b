"""When a study of DDML ends and how, what is written when, and who is let in after all."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_cases import PATIENCE, improved, manifest_of, open_sqlite, published
from shoal.clock import ManualClock
from shoal.coordinator.admission import KNOWN_MILLISECONDS
from shoal.coordinator.devices import TIDY_MILLISECONDS, Devices, Entry
from shoal.coordinator.hosting import milliseconds
from shoal.coordinator.models.base import Arriving, ModelStore, Scrubbed, unknown
from shoal.coordinator.models.memory import MemoryModels
from shoal.coordinator.models.sqlite import SqliteModels
from shoal.coordinator.store.base import Ending, Hosted, Store
from shoal.crypto.roster import Identity
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.protocols.ddml.model import from_plain
from shoal.study.load import parse
from shoal.study.manifest import Manifest
from shoal.study.templates import study_text
from shoal.transport.routes import study_route
from shoal.transport.signing import sign


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_sqlite(tmp_path) as opened:
        yield opened


@pytest.fixture(params=["memory", "sqlite"])
def models(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ModelStore]:
    with MemoryModels() if request.param == "memory" else SqliteModels(tmp_path / "coordinator.db") as opened:
        yield opened


async def entry_of(devices: Devices, hosted: Hosted) -> Entry:
    entry = await devices.entry(hosted.digest)
    assert entry is not None
    return entry


def is_over(entry: Entry) -> bool:
    return entry.is_over


async def send(entry: Entry, entropy: SeededEntropy, n: int) -> None:
    for _ in range(n):
        await entry.update("", improved(b"".join(await entry.draw()), entropy), None)


async def send_signed(entry: Entry, who: Identity, number: int, body: bytes, clock: ManualClock, entropy: SeededEntropy) -> None:
    target = f"{study_route(entry.digest, 'update')}?number={number}"
    await entry.update(target, body, sign(who, "POST", target, body, milliseconds(clock.now()), entropy))


def test_a_study_is_done_when_enough_was_merged(store: Store, models: ModelStore, clock: ManualClock, entropy: SeededEntropy) -> None:
    hosted = published(store, manifest_of("open", size=10), clock)

    async def main() -> Ending | None:
        devices = Devices(store, models, clock, entropy)
        assert await devices.n_merged(hosted.digest) == 0
        entry = await entry_of(devices, hosted)
        await send(entry, entropy, 19)
        assert await devices.n_merged(hosted.digest) == 19
        assert await devices.step(hosted) is None
        drawn = b"".join(await entry.draw())
        await entry.update("", improved(drawn, entropy)[:-1], None)
        await send(entry, entropy, 1)
        assert is_over(entry)
        await entry.update("", improved(drawn, entropy), None)
        with pytest.raises(RemoteProtocolError, match="has ended"):
            await entry.draw()
        await devices.tend()
        ending = await devices.step(hosted)
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
def test_a_study_ends_when_its_time_is_up(
    n: int, status: str, store: Store, models: ModelStore, clock: ManualClock, entropy: SeededEntropy
) -> None:
    hosted = published(store, manifest_of("open"), clock)

    async def main() -> Ending | None:
        devices = Devices(store, models, clock, entropy)
        entry = await entry_of(devices, hosted)
        await send(entry, entropy, n)
        clock.advance(PATIENCE / 1000 - 0.001)
        assert await devices.step(hosted) is None
        assert not is_over(entry)
        clock.advance(0.001)
        ending = await devices.step(hosted)
        assert is_over(entry)
        await devices.stop()
        return ending

    ending = asyncio.run(main())
    assert ending is not None
    assert ending.status == status
    if status == "failed":
        assert ending.reason is not None
        assert "9 updates were merged; the study needs 10" in ending.reason


def test_a_worker_that_does_not_know_of_the_end_merges_nothing(tmp_path: Path, clock: ManualClock, entropy: SeededEntropy) -> None:
    path = tmp_path / "coordinator.db"
    with open_sqlite(tmp_path) as one, open_sqlite(tmp_path) as two, SqliteModels(path) as here, SqliteModels(path) as there:
        hosted = published(one, manifest_of("open"), clock)

        async def main() -> None:
            ending, late = Devices(one, here, clock, entropy), Devices(two, there, clock, entropy)
            entry, unaware = await entry_of(ending, hosted), await entry_of(late, hosted)
            await send(entry, entropy, 10)
            clock.advance(PATIENCE / 1000)
            ended = await ending.step(hosted)
            assert ended is not None
            before = here.all_instances(hosted.digest).tolist()
            await send(unaware, entropy, 3)
            assert (there.n_merged(hosted.digest), there.all_instances(hosted.digest).tolist()) == (10, before)
            assert not is_over(unaware)
            one.end(hosted.digest, ended)
            await late.tend()
            assert is_over(unaware)
            await asyncio.gather(ending.stop(), late.stop())

        asyncio.run(main())
        assert one.totals(hosted.digest).refused == {"stale": 3}


def test_nothing_is_merged_into_a_study_that_was_closed(tmp_path: Path, clock: ManualClock, entropy: SeededEntropy) -> None:
    path = tmp_path / "coordinator.db"
    with open_sqlite(tmp_path) as store, SqliteModels(path) as here, SqliteModels(path) as there:
        hosted = published(store, manifest_of("open"), clock)

        async def main() -> None:
            aware, unaware = Devices(store, here, clock, entropy), Devices(store, there, clock, entropy)
            entry, late = await entry_of(aware, hosted), await entry_of(unaware, hosted)
            body = improved(b"".join(await entry.draw()), entropy)
            await entry.update("", body, None)
            assert here.knows(hosted.digest, body[:16], 0)
            store.end(hosted.digest, Ending("closed"))
            await aware.see("another")
            assert not is_over(entry)
            await aware.see(hosted.digest)
            assert is_over(entry)
            assert not here.knows(hosted.digest, body[:16], 0)
            await send(late, entropy, 2)
            assert there.n_merged(hosted.digest) == 1
            await asyncio.gather(aware.stop(), unaware.stop())

        asyncio.run(main())


class Watched(MemoryModels):
    def __init__(self) -> None:
        super().__init__()
        self.n_scrubbed = 0

    def scrub(self, seconds: float = 0.0) -> Scrubbed:
        self.n_scrubbed += 1
        return super().scrub(seconds)


def test_the_disk_is_tidied_once_a_minute_while_something_is_merged(store: Store, clock: ManualClock, entropy: SeededEntropy) -> None:
    hosted, models = published(store, manifest_of("open"), clock), Watched()

    async def main() -> None:
        devices = Devices(store, models, clock, entropy)
        entry = await entry_of(devices, hosted)
        begun = models.n_scrubbed
        await send(entry, entropy, 1)
        for seconds, n in [(0, 0), (TIDY_MILLISECONDS / 1000 - 1, 0), (1, 1), (1000, 1)]:
            clock.advance(seconds)
            await devices.tend()
            assert models.n_scrubbed == begun + n
        await send(entry, entropy, 1)
        store.end(hosted.digest, Ending("closed"))
        for _ in range(2):
            await devices.tend()
            assert models.n_scrubbed == begun + 2
        await devices.stop()

    asyncio.run(main())


class Broken(MemoryModels):
    """Has lost one study."""

    lost = ""

    def n_merged(self, study: str) -> int:
        if study == self.lost:
            raise unknown(study)
        return super().n_merged(study)


def test_a_study_that_is_lost_keeps_no_other_from_being_tended(store: Store, clock: ManualClock, entropy: SeededEntropy) -> None:
    one, two, models = published(store, manifest_of("open"), clock), published(store, manifest_of("open", size=10), clock), Broken()

    async def main() -> None:
        devices = Devices(store, models, clock, entropy)
        first, second = await entry_of(devices, one), await entry_of(devices, two)
        models.lost = one.digest
        for hosted in (one, two):
            store.end(hosted.digest, Ending("closed"))
        await devices.tend()
        assert is_over(second)
        models.lost = ""
        await devices.tend()
        assert is_over(first)
        await devices.stop()

    asyncio.run(main())


def test_a_key_that_has_left_is_known_for_ten_seconds(store: Store, clock: ManualClock, entropy: SeededEntropy) -> None:
    hosted, models = published(store, manifest_of("signed"), clock), MemoryModels()
    identity = Identity.from_seed(entropy.bytes(32))
    store.enrol(hosted.digest, identity.public, None, None, None)

    async def main() -> None:
        devices = Devices(store, models, clock, entropy)
        entry = await entry_of(devices, hosted)

        async def update(number: int) -> None:
            body = improved(b"".join(await entry.draw()), entropy)
            await send_signed(entry, identity, number, body, clock, entropy)

        await update(0)
        store.leave(hosted.digest, identity.public, bytes(16), 1 << 50)
        clock.advance(KNOWN_MILLISECONDS / 1000 - 1)
        await update(1)
        clock.advance(1)
        with pytest.raises(RemoteProtocolError, match="not enrolled"):
            await update(1)
        await devices.stop()

    asyncio.run(main())
    assert models.n_merged(hosted.digest) == 2


def test_a_key_is_merged_as_often_as_the_study_says(store: Store, models: ModelStore, clock: ManualClock, entropy: SeededEntropy) -> None:
    hosted = published(store, manifest_of("signed"), clock)
    identity = Identity.from_seed(entropy.bytes(32))
    store.enrol(hosted.digest, identity.public, None, None, None)

    async def main() -> None:
        devices = Devices(store, models, clock, entropy)
        entry = await entry_of(devices, hosted)
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
    assert models.n_merged(hosted.digest) == 2


def test_an_update_that_is_refused_leaves_its_number_free(
    store: Store, models: ModelStore, clock: ManualClock, entropy: SeededEntropy
) -> None:
    hosted = published(store, manifest_of("signed"), clock)
    identity = Identity.from_seed(entropy.bytes(32))
    store.enrol(hosted.digest, identity.public, None, None, None)

    async def main() -> None:
        devices = Devices(store, models, clock, entropy)
        entry = await entry_of(devices, hosted)
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
    assert models.n_merged(hosted.digest) == 1


def test_an_epoch_that_began_at_another_worker_has_begun(tmp_path: Path, clock: ManualClock, entropy: SeededEntropy) -> None:
    path = tmp_path / "coordinator.db"
    with open_sqlite(tmp_path) as store, SqliteModels(path) as here, SqliteModels(path) as there:
        hosted = published(store, manifest_of("signed"), clock)
        identity = Identity.from_seed(entropy.bytes(32))
        store.enrol(hosted.digest, identity.public, None, None, None)

        async def main() -> None:
            busy, idle = Devices(store, here, clock, entropy), Devices(store, there, clock, entropy)
            entry, late = await entry_of(busy, hosted), await entry_of(idle, hosted)
            n = entry.serving.params.epoch_updates
            slots = here.all_instances(hosted.digest)
            here.merge_many(hosted.digest, [Arriving(i % 5, entropy.bytes(16), 0, slots[i % 5].tobytes()) for i in range(n)], 1.0)
            body = improved(b"".join(await entry.draw()), entropy)
            assert (body[16], late.serving.n_merged) == (1, 0)
            await send_signed(late, identity, 0, body, clock, entropy)
            assert there.n_merged(hosted.digest) == n + 1
            await asyncio.gather(busy.stop(), idle.stop())

        asyncio.run(main())


def test_neither_tickets_nor_bodies_are_in_the_store(tmp_path: Path, clock: ManualClock, entropy: SeededEntropy) -> None:
    ticket = entropy.bytes(32)
    with open_sqlite(tmp_path) as store:
        hosted = published(store, manifest_of("token"), clock)
        store.enrol(hosted.digest, Identity.from_seed(entropy.bytes(32)).public, None, hashlib.sha256(ticket).digest(), None)

        async def main() -> bytes:
            devices = Devices(store, MemoryModels(), clock, entropy)
            entry = await entry_of(devices, hosted)
            body = improved(b"".join(await entry.draw()), entropy)
            await entry.update("", body, f"{ticket.hex()} 0")
            assert entry.serving.n_merged == 1
            await devices.stop()
            return body

        body = asyncio.run(main())
        on_disk = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert hashlib.sha256(body).digest() in on_disk
    for secret in (ticket, ticket.hex().encode(), body[:16], body[24:]):
        assert secret not in on_disk


def test_studies_that_are_not_here_or_not_of_ddml(store: Store, clock: ManualClock, entropy: SeededEntropy) -> None:
    other, anonml = manifest_of("open"), Manifest(parse(study_text("anonml")))
    published(store, anonml, clock)

    async def main() -> None:
        devices = Devices(store, MemoryModels(), clock, entropy)
        assert await devices.entry(anonml.digest.hex()) is None
        assert await devices.entry(other.digest.hex()) is None
        hosted = published(store, other, clock)
        first, second = await asyncio.gather(*(devices.entry(hosted.digest) for _ in range(2)))
        assert first is second
        assert first is not None
        await devices.stop()

    asyncio.run(main())
