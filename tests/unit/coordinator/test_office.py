"""Whole studies through one worker and through two, on a real store; who may enrol, what is told, and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from coordinator_cases import NOW, QUERIES, aggregator_of, attend, hosted_of, identity, manifest_of, peers_of, ticket
from device_cases import improved
from device_cases import manifest_of as devices_of
from office_cases import new, opened, refusal, run
from shoal.clock import ManualClock
from shoal.coordinator import office as office_module
from shoal.coordinator.models.memory import MemoryModels
from shoal.coordinator.office import Office, rounded
from shoal.coordinator.publishing import draw_invitations, first_start, publish
from shoal.coordinator.results import result_of
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, StoreError
from shoal.messages.base import Array
from shoal.messages.codec import encode
from shoal.protocols.anonml.messages import Answer
from shoal.protocols.base import AGGREGATOR, run_local
from shoal.protocols.pfds.messages import Tables
from shoal.transport.forms import Enrolled, Enrolment, Poll, Published, from_cbor
from shoal.transport.signing import verify_published


async def put(office: Office, name: str, **options: Any) -> str:
    """Publish one of the studies, with what its case has besides."""
    manifest, hosted = manifest_of(name), hosted_of(name)
    queries = QUERIES if hosted.queries else ()
    publish(office._store, manifest, NOW, patience=hosted.patience, queries=queries, **options)
    return hosted.digest


@pytest.mark.parametrize(
    ("name", "n_workers"),
    [("anonml", 1), ("anonml phases", 2), ("anonml paper", 2), ("sdq", 2), ("pfds", 2), ("pfds sum", 1), ("pfds paper", 1)],
)
def test_a_study_through_the_office_comes_to_what_the_loop_in_memory_comes_to(tmp_path: Path, name: str, n_workers: int) -> None:
    aggregator = aggregator_of(manifest_of(name), hosted_of(name))
    assert aggregator is not None
    expected = run_local(aggregator, peers_of(name, 24), SeededEntropy(1))

    async def main() -> None:
        clock = ManualClock()
        async with opened(tmp_path, clock) as one, opened(tmp_path, clock, "two") as two, asyncio.timeout(60):
            offices = (one, two)[:n_workers]
            digest = await put(one, name)
            outcome = await attend(offices, name, peers_of(name, 24), clock)
            mine, theirs = (
                json.loads(await offices[-1].model(digest)),
                json.loads(result_of(manifest_of(name), expected.results[AGGREGATOR])),
            )
            assert (outcome.rejected, outcome.failed, outcome.aborted) == ([], [], {})
            assert outcome.results.keys() == expected.results.keys() - {AGGREGATOR}
            assert mine["counts"] == theirs["counts"]
            if name != "anonml paper":
                assert mine["model"] == theirs["model"]
            progress = await one.progress(digest)
            # A holder may still be saying that it has heard when all is over.
            assert progress["status"] == "done" and progress["refused"].keys() <= {"HOST-002"}
            assert one._store.totals(digest).waiting == 0

    asyncio.run(main())


def test_nobody_waits_for_a_deadline_when_as_many_as_declared_have_all_answered(tmp_path: Path) -> None:
    async def work(office: Office, clock: ManualClock) -> None:
        digest, began = await put(office, "anonml phases"), clock.now()
        await attend((office,), "anonml phases", peers_of("anonml phases", 60), clock)
        assert clock.now() == began
        assert sum(json.loads(await office.model(digest))["counts"]["answers"]) == 60

    run(tmp_path, work)


def test_a_study_is_told_as_it_stands_and_signed(tmp_path: Path) -> None:
    async def work(office: Office, clock: ManualClock) -> None:
        manifest = manifest_of("pfds")
        hosted = await office.publish(manifest.to_bytes(), patience=5_000)
        assert await office.publish(manifest.to_bytes(), patience=9_000) == hosted
        assert await office.studies() == (hosted,)
        served = await office.study(hosted.digest)
        published = from_cbor(served.published, Published)
        assert published.key == office.identity.public
        verify_published(published.key, manifest.digest, published.signature)
        assert served.protocol == "pfds"
        assert await refusal(office.model(hosted.digest)) == "HOST-002"
        await office.close_study(hosted.digest)
        assert (await office.study(hosted.digest)).hosted.status == "closed"
        assert await refusal(office.model(hosted.digest)) == "HOST-002"
        assert (await office.board(hosted.digest, 0, 30)).status == "closed"
        assert await refusal(office.study("7f" * 32)) == "HOST-001"
        assert await refusal(office.board("7f" * 32, 0, 0)) == "HOST-001"
        assert await office.is_ready()

    run(tmp_path, work)


def test_a_study_that_was_closed_at_another_worker_is_closed_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with opened(tmp_path, clock) as here, opened(tmp_path, clock, "two") as there, asyncio.timeout(60):
            people, holders = await put(here, "anonml"), await put(here, "pfds")
            key, form = identity(1).public, Enrolment(ticket=ticket(1).hex())
            # Both are known to the worker that is not asked to close them.
            await there.enrol(people, key, form, new())
            await there.enrol(holders, key, Enrolment(), new())
            packet = encode(Answer(study=bytes.fromhex(people), ticket=ticket(1), phase=0, question=0, report=b"\0"))
            counts = Array(element="int64", count=1, data=bytes(8))
            tables = encode(Tables(study=bytes.fromhex(holders), counts=counts))
            await there.submit(people, b"rubbish")
            for digest in (people, holders):
                await here.close_study(digest)
                assert (await there.study(digest)).hosted.status == "closed"
                assert (await there.board(digest, 0, 30)).status == "closed"
                assert await refusal(there.enrol(digest, identity(2).public, form, new())) == "ENROL-001"
                assert await refusal(there.model(digest)) == "HOST-002"
            assert await there.message(holders, "holder-0", tables, new()) == "over"
            await there.submit(people, packet)
            await there.progress(people)
            assert there._store.totals(people).refused == {"MSG-002": 1, "HOST-002": 1}

    asyncio.run(main())


def test_what_is_kept_of_studies_in_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office_module, "_MOST_STUDIES", 1)

    async def work(office: Office, clock: ManualClock) -> None:
        names = ("anonml", "anonml phases", "pfds")
        digests = [await put(office, name) for name in names]
        for _ in range(2):
            for name, digest in zip(names, digests, strict=True):
                await office.submit(digest, b"rubbish")
                assert (await office.study(digest)).manifest == manifest_of(name)
                assert len(office._served) == len(office._intakes) == 1
        await office.progress(digests[0])
        assert [office._store.totals(digest).refused for digest in digests] == [{"MSG-002": 2}] * 3

    run(tmp_path, work)


def test_only_the_analyst_has_the_analyst_s_key(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "store.db") as store:
        _, key = first_start(store, SeededEntropy(1))
    assert key is not None

    async def work(office: Office, clock: ManualClock) -> None:
        assert office.is_analyst(key)
        assert office.is_analyst(key.upper().replace("-", " "))
        assert not office.is_analyst(key[:-1])
        assert not office.is_analyst("")

    run(tmp_path, work)


def test_seats_are_taken_in_order_and_the_roster_s_names_by_key(tmp_path: Path) -> None:
    async def work(office: Office, clock: ManualClock) -> None:
        free, rostered = await put(office, "pfds"), await put(office, "pfds sum")
        first = await office.enrol(free, identity(8).public, Enrolment(), new())
        assert first == await office.enrol(free, identity(8).public, Enrolment(), new()) == Enrolled(name="holder-0", position=0)
        assert await office.enrol(free, identity(5).public, Enrolment(), new()) == Enrolled(name="holder-1", position=1)
        assert await office.name_of(free, identity(5).public) == "holder-1"
        assert await office.enrol(rostered, identity(2).public, Enrolment(), new()) == Enrolled(name="site-2", position=2)
        assert await refusal(office.enrol(rostered, identity(5).public, Enrolment(), new())) == "ENROL-001"
        assert await refusal(office.name_of(rostered, identity(5).public)) == "ENROL-001"
        await office.leave(free, identity(5).public, bytes(16))
        assert await refusal(office.leave(free, identity(5).public, bytes(16))) == "AUTH-005"
        assert await refusal(office.name_of(free, identity(5).public)) == "ENROL-001"

    run(tmp_path, work)


def test_people_enrol_with_a_ticket_and_where_it_is_asked_an_invitation(tmp_path: Path) -> None:
    async def work(office: Office, clock: ManualClock) -> None:
        codes = draw_invitations(1, SeededEntropy(1))
        digest = await put(office, "anonml", invitations=codes)
        key, given = identity(1).public, ticket(1).hex()
        assert await refusal(office.enrol(digest, key, Enrolment(ticket=given), new())) == "ENROL-001"
        assert await refusal(office.enrol(digest, key, Enrolment(ticket=given, invitation="another"), new())) == "ENROL-001"
        assert await refusal(office.enrol(digest, key, Enrolment(invitation=codes[0]), new())) == "MSG-005"
        enrolled = await office.enrol(digest, key, Enrolment(ticket=given, invitation=codes[0].upper()), new())
        assert enrolled.position is None
        assert await refusal(office.enrol(digest, key, Enrolment(ticket=ticket(2).hex(), invitation=codes[0]), new())) == "ENROL-002"
        second = Enrolment(ticket=ticket(2).hex(), invitation=codes[0])
        assert await refusal(office.enrol(digest, identity(2).public, second, new())) == "ENROL-001"
        # Who comes back, or did not hear the answer, is known and needs no other.
        await office.leave(digest, key, new())
        assert await office.enrol(digest, key, Enrolment(ticket=given), new()) == enrolled

    run(tmp_path, work)


def test_a_long_poll_ends_at_once_when_a_letter_is_written_or_the_worker_stops(tmp_path: Path) -> None:
    async def work(office: Office, clock: ManualClock) -> None:
        digest = await put(office, "anonml")
        opening = await office.board(digest, 0, 30)
        [letter] = opening.letters
        waits = asyncio.create_task(office.board(digest, letter.number, 30))
        while not office._bells.is_awaited:
            await asyncio.sleep(0)
        office.hang_up()
        assert (await waits).letters == ()

    run(tmp_path, work)


def test_a_poll_that_comes_again_is_refused_and_what_is_acknowledged_is_forgotten(tmp_path: Path) -> None:
    async def work(office: Office, clock: ManualClock) -> None:
        digest = await put(office, "pfds sum")
        for i in range(4):
            await office.enrol(digest, identity(i).public, Enrolment(), new())
        opening = await office.mailbox(digest, "site-1", Poll(wait_seconds=30), bytes(16))
        assert opening.letters
        assert await refusal(office.mailbox(digest, "site-1", Poll(), bytes(16))) == "AUTH-005"
        later = await office.mailbox(digest, "site-1", Poll(after=opening.letters[-1].number), b"2" * 16)
        assert later.letters == ()

    run(tmp_path, work)


def test_people_are_counted_in_tens_and_holders_one_by_one(tmp_path: Path) -> None:
    async def work(office: Office, clock: ManualClock) -> None:
        people, holders = await put(office, "anonml"), await put(office, "pfds")
        for i in range(13):
            await office.enrol(people, identity(i).public, Enrolment(ticket=ticket(i).hex()), new())
            await office.submit(people, b"rubbish")
        await office.enrol(holders, identity(1).public, Enrolment(), new())
        counts = Array(element="int64", count=1, data=bytes(8))
        body = encode(Tables(study=manifest_of("pfds").digest, counts=counts))
        assert await office.message(holders, "holder-0", body, bytes(16)) == "accepted"
        while office._store.totals(holders).waiting:
            await asyncio.sleep(0.01)
        shown = await office.progress(people)
        assert (shown["enrolled"], shown["accepted"], shown["refused"]) == (10, 0, {"MSG-002": 10})
        named = await office.progress(holders)
        assert (named["enrolled"], named["accepted"], named["refused"]) == (1, 1, {"MSG-005": 1})
        totals = {served.hosted.digest: counted for served, counted in await office.totals()}
        assert (totals[people].refused, totals[holders].enrolled) == ({"MSG-002": 13}, 1)
        assert [rounded(n) for n in (0, 9, 10, 19)] == [0, 0, 10, 10]

    run(tmp_path, work)


def test_updates_of_devices_are_counted_as_they_are_merged(tmp_path: Path) -> None:
    async def work(office: Office, clock: ManualClock) -> None:
        manifest, entropy = devices_of("open"), SeededEntropy(3)
        digest = publish(office._store, manifest, NOW)[0].digest
        entry = await office.devices.entry(digest)
        assert entry is not None
        for _ in range(12):
            await entry.update("", improved(b"".join(await entry.draw()), entropy), None)
        assert (await office.progress(digest))["accepted"] == 10
        assert [totals.accepted for _, totals in await office.totals()] == [12]

    run(tmp_path, work)


class Away(SqliteStore):
    """A store that cannot be asked for a while."""

    is_away = False

    def ping(self) -> None:
        if self.is_away:
            raise StoreError("STORE-001", "It is away.")
        super().ping()


def test_it_is_ready_while_it_steps_and_its_store_is_there(tmp_path: Path) -> None:
    async def main() -> None:
        with Away(tmp_path / "store.db") as store:
            office = Office(store, MemoryModels(), ManualClock(), SeededEntropy(7), "one")
            assert not await office.is_ready()
            await office.start()
            assert await office.is_ready()
            store.is_away = True
            assert not await office.is_ready()
            await office.stop()

    asyncio.run(main())


def test_nobody_enrols_in_a_study_that_has_closed(tmp_path: Path) -> None:
    async def work(office: Office, clock: ManualClock) -> None:
        manifest = manifest_of("anonml", closes="2030-01-01T00:00:30Z")
        digest = publish(office._store, manifest, NOW)[0].digest
        clock.advance(29)
        assert await office.enrol(digest, identity(0).public, Enrolment(ticket=ticket(0).hex()), new())
        clock.advance(1)
        with pytest.raises(RemoteProtocolError, match="closed on 2030-01-01 at 00:00") as caught:
            await office.enrol(digest, identity(1).public, Enrolment(ticket=ticket(1).hex()), new())
        assert caught.value.code == "ENROL-001"
        assert office._store.totals(digest).enrolled == 1

    run(tmp_path, work)
