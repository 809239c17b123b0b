"""Complete studies through one and two workers on a real store; enrolment and rejections."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from shoal.clock import ManualClock
from shoal.coordinator import service as service_module
from shoal.coordinator import submissions
from shoal.coordinator.ddml.instances.memory import MemoryInstanceStore
from shoal.coordinator.publishing import draw_invitations, load_or_create_secrets
from shoal.coordinator.service import CoordinatorService, round_count
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.coordinator.studies import encode_result
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, StoreError
from shoal.messages.base import Array
from shoal.messages.codec import encode
from shoal.protocols.anonml.messages import AnonMLAnswer
from shoal.protocols.base import AGGREGATOR, run_local
from shoal.protocols.pfds.messages import HolderTables
from shoal.study.handle import StudyHandle
from shoal.transport.api import Enrolled, Enrolment, Poll, SignedManifest, from_cbor
from shoal.transport.signing import verify_manifest
from tests.support.coordinator import (
    NOW,
    QUERIES,
    accept_message,
    attend,
    enrol,
    get_model,
    identity,
    make_aggregator,
    make_manifest,
    make_peers,
    make_record,
    new,
    opened,
    publish_manifest,
    refusal,
    run,
    submit,
    ticket,
)
from tests.support.ddml import improved
from tests.support.ddml import make_manifest as devices_of


async def put(service: CoordinatorService, name: str, **options: Any) -> str:
    """Publish one of the studies, with what its case has besides."""
    manifest, record = make_manifest(name), make_record(name)
    queries = QUERIES if record.queries else ()
    publish_manifest(
        service._store,
        manifest,
        NOW,
        phase_timeout=record.phase_timeout,
        queries=queries,
        **options,
    )
    return record.digest


@pytest.mark.parametrize(
    ("name", "n_workers"),
    [
        ("anonml", 1),
        ("anonml phases", 2),
        ("anonml paper", 2),
        ("sdq", 2),
        ("pfds", 2),
        ("pfds sum", 1),
        ("pfds paper", 1),
    ],
)
def test_study_through_service_gives_result_of_local_run(
    tmp_path: Path, name: str, n_workers: int
) -> None:
    aggregator = make_aggregator(make_manifest(name), make_record(name))
    assert aggregator is not None
    expected = run_local(aggregator, make_peers(name, 24), SeededEntropy(1))

    async def main() -> None:
        clock = ManualClock()
        async with (
            opened(tmp_path, clock) as one,
            opened(tmp_path, clock, "two") as two,
            asyncio.timeout(60),
        ):
            services = (one, two)[:n_workers]
            digest = await put(one, name)
            outcome = await attend(services, name, make_peers(name, 24), clock)
            mine, theirs = (
                json.loads(await get_model(services[-1], digest)),
                json.loads(
                    encode_result(StudyHandle(make_manifest(name)), expected.results[AGGREGATOR])
                ),
            )
            assert (outcome.rejected, outcome.failed, outcome.aborted) == ([], [], {})
            assert outcome.results.keys() == expected.results.keys() - {AGGREGATOR}
            assert mine["counts"] == theirs["counts"]
            if name != "anonml paper":
                assert mine["model"] == theirs["model"]
            progress = await one.get_progress(digest)
            # A holder may still be saying that it has heard when all is over.
            assert progress["status"] == "done" and progress["refused"].keys() <= {"HOST-002"}
            assert one._store.count_totals(digest).waiting == 0

    asyncio.run(main())


def test_phase_ends_when_all_declared_people_have_answered(
    tmp_path: Path,
) -> None:
    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        digest, began = await put(service, "anonml phases"), clock.now()
        await attend((service,), "anonml phases", make_peers("anonml phases", 60), clock)
        assert clock.now() == began
        assert sum(json.loads(await get_model(service, digest))["counts"]["answers"]) == 60

    run(tmp_path, work)


def test_get_study_returns_current_signed_study(tmp_path: Path) -> None:
    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        manifest = make_manifest("pfds")
        record = await service.publish(manifest.to_bytes(), phase_timeout=5_000)
        assert await service.publish(manifest.to_bytes(), phase_timeout=9_000) == record
        assert [view.record for view in await service.list_studies()] == [record]
        served = await service.get_study(record.digest)
        published = from_cbor(served.signed_manifest, SignedManifest)
        assert published.key == service.identity.public_key
        verify_manifest(published.key, manifest.digest, published.signature)
        assert served.handle.study.protocol == "pfds"
        assert await refusal(get_model(service, record.digest)) == "HOST-002"
        await service.close_study(record.digest)
        assert (await service.get_study(record.digest)).record.status == "closed"
        assert await refusal(get_model(service, record.digest)) == "HOST-002"
        assert (await service.mailbox.fetch(record.digest, None, 0, 30)).status == "closed"
        assert await refusal(service.get_study("7f" * 32)) == "HOST-001"
        assert await refusal(service.mailbox.fetch("7f" * 32, None, 0, 0)) == "HOST-001"
        assert await service.is_ready()

    run(tmp_path, work)


def test_study_closed_at_other_worker_is_closed_immediately(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with (
            opened(tmp_path, clock) as here,
            opened(tmp_path, clock, "two") as there,
            asyncio.timeout(60),
        ):
            people, holders = await put(here, "anonml"), await put(here, "pfds")
            key, form = identity(1).public_key, Enrolment(ticket=ticket(1).hex())
            # Both are known to the worker that is not asked to close them.
            await enrol(there, people, key, form, new())
            await enrol(there, holders, key, Enrolment(), new())
            packet = encode(
                AnonMLAnswer(
                    study=bytes.fromhex(people), ticket=ticket(1), phase=0, question=0, report=b"\0"
                )
            )
            counts = Array(element="int64", count=1, data=bytes(8))
            tables = encode(HolderTables(study=bytes.fromhex(holders), counts=counts))
            await submit(there, people, b"rubbish")
            for digest in (people, holders):
                await here.close_study(digest)
                assert (await there.get_study(digest)).record.status == "closed"
                assert (await there.mailbox.fetch(digest, None, 0, 30)).status == "closed"
                assert (
                    await refusal(enrol(there, digest, identity(2).public_key, form, new()))
                    == "ENROL-001"
                )
                assert await refusal(get_model(there, digest)) == "HOST-002"
            code = await refusal(accept_message(there, holders, "holder-0", tables, new()))
            assert code == "HOST-002"
            await submit(there, people, packet)
            await there.get_progress(people)
            assert there._store.count_totals(people).refused == {"MSG-002": 1, "HOST-002": 1}

    asyncio.run(main())


def test_cached_studies_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "_MAX_CACHED_STUDIES", 1)
    monkeypatch.setattr(submissions, "_MAX_CACHED_STUDIES", 1)

    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        names = ("anonml", "anonml phases", "pfds")
        digests = [await put(service, name) for name in names]
        for _ in range(2):
            for name, digest in zip(names, digests, strict=True):
                await submit(service, digest, b"rubbish")
                assert (await service.get_study(digest)).manifest == make_manifest(name)
                assert len(service._views) == len(service.submissions._message_intakes) == 1
        await service.get_progress(digests[0])
        assert [service._store.count_totals(digest).refused for digest in digests] == [
            {"MSG-002": 2}
        ] * 3

    run(tmp_path, work)


def test_is_analyst_accepts_only_analyst_key(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "store.db") as store:
        _, key = load_or_create_secrets(store, SeededEntropy(1))
    assert key is not None

    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        assert service.is_analyst(key)
        assert service.is_analyst(key.upper().replace("-", " "))
        assert not service.is_analyst(key[:-1])
        assert not service.is_analyst("")

    run(tmp_path, work)


def test_enrol_assigns_seats_in_order_and_roster_names_by_key(tmp_path: Path) -> None:
    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        free, rostered = await put(service, "pfds"), await put(service, "pfds sum")
        first = await enrol(service, free, identity(8).public_key, Enrolment(), new())
        assert (
            first
            == await enrol(service, free, identity(8).public_key, Enrolment(), new())
            == Enrolled(name="holder-0", position=0)
        )
        assert await enrol(service, free, identity(5).public_key, Enrolment(), new()) == Enrolled(
            name="holder-1", position=1
        )
        assert await service.registrar.get_name(free, identity(5).public_key) == "holder-1"
        assert await enrol(
            service, rostered, identity(2).public_key, Enrolment(), new()
        ) == Enrolled(name="site-2", position=2)
        assert (
            await refusal(enrol(service, rostered, identity(5).public_key, Enrolment(), new()))
            == "ENROL-001"
        )
        assert (
            await refusal(service.registrar.get_name(rostered, identity(5).public_key))
            == "ENROL-001"
        )
        await service.registrar.leave(free, identity(5).public_key, bytes(16))
        assert (
            await refusal(service.registrar.leave(free, identity(5).public_key, bytes(16)))
            == "AUTH-005"
        )
        assert (
            await refusal(service.registrar.get_name(free, identity(5).public_key)) == "ENROL-001"
        )

    run(tmp_path, work)


def test_enrol_needs_ticket_and_invitation(tmp_path: Path) -> None:
    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        codes = draw_invitations(1, SeededEntropy(1))
        digest = await put(service, "anonml", invitations=codes)
        key, given = identity(1).public_key, ticket(1).hex()
        assert (
            await refusal(enrol(service, digest, key, Enrolment(ticket=given), new()))
            == "ENROL-001"
        )
        assert (
            await refusal(
                enrol(service, digest, key, Enrolment(ticket=given, invitation="another"), new())
            )
            == "ENROL-001"
        )
        assert (
            await refusal(enrol(service, digest, key, Enrolment(invitation=codes[0]), new()))
            == "MSG-005"
        )
        enrolled = await enrol(
            service, digest, key, Enrolment(ticket=given, invitation=codes[0].upper()), new()
        )
        assert enrolled.position is None
        assert (
            await refusal(
                enrol(
                    service,
                    digest,
                    key,
                    Enrolment(ticket=ticket(2).hex(), invitation=codes[0]),
                    new(),
                )
            )
            == "ENROL-002"
        )
        second = Enrolment(ticket=ticket(2).hex(), invitation=codes[0])
        assert (
            await refusal(enrol(service, digest, identity(2).public_key, second, new()))
            == "ENROL-001"
        )
        # Who comes back, or did not hear the answer, is known and needs no other.
        await service.registrar.leave(digest, key, new())
        assert await enrol(service, digest, key, Enrolment(ticket=given), new()) == enrolled

    run(tmp_path, work)


def test_long_poll_ends_at_new_message_or_stop(
    tmp_path: Path,
) -> None:
    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        digest = await put(service, "anonml")
        opening = await service.mailbox.fetch(digest, None, 0, 30)
        [message] = opening.letters
        waits = asyncio.create_task(service.mailbox.fetch(digest, None, message.number, 30))
        while not service.mailbox.notifier.has_waiters:
            await asyncio.sleep(0)
        service.mailbox.notifier.close()
        assert (await waits).letters == ()

    run(tmp_path, work)


def test_replayed_poll_is_rejected_and_acknowledged_messages_deleted(
    tmp_path: Path,
) -> None:
    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        digest = await put(service, "pfds sum")
        for i in range(4):
            await enrol(service, digest, identity(i).public_key, Enrolment(), new())
        opening = await service.mailbox.poll(digest, "site-1", Poll(wait_seconds=30), bytes(16))
        assert opening.letters
        assert (
            await refusal(service.mailbox.poll(digest, "site-1", Poll(), bytes(16))) == "AUTH-005"
        )
        later = await service.mailbox.poll(
            digest, "site-1", Poll(after=opening.letters[-1].number), b"2" * 16
        )
        assert later.letters == ()

    run(tmp_path, work)


def test_progress_rounds_people_and_counts_holders_exactly(tmp_path: Path) -> None:
    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        people, holders = await put(service, "anonml"), await put(service, "pfds")
        for i in range(13):
            await enrol(
                service, people, identity(i).public_key, Enrolment(ticket=ticket(i).hex()), new()
            )
            await submit(service, people, b"rubbish")
        await enrol(service, holders, identity(1).public_key, Enrolment(), new())
        counts = Array(element="int64", count=1, data=bytes(8))
        body = encode(HolderTables(study=make_manifest("pfds").digest, counts=counts))
        await accept_message(service, holders, "holder-0", body, bytes(16))
        while service._store.count_totals(holders).waiting:
            await asyncio.sleep(0.01)
        shown = await service.get_progress(people)
        assert (shown["enrolled"], shown["accepted"], shown["refused"]) == (10, 0, {"MSG-002": 10})
        named = await service.get_progress(holders)
        assert (named["enrolled"], named["accepted"], named["refused"]) == (1, 1, {"MSG-005": 1})
        totals = {served.record.digest: counted for served, counted in await service.list_totals()}
        assert (totals[people].refused, totals[holders].enrolled) == ({"MSG-002": 13}, 1)
        assert [round_count(n) for n in (0, 9, 10, 19)] == [0, 0, 10, 10]

    run(tmp_path, work)


def test_progress_counts_merged_updates(tmp_path: Path) -> None:
    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        manifest, entropy = devices_of("open"), SeededEntropy(3)
        digest = publish_manifest(service._store, manifest, NOW)[0].digest
        entry = await service.ddml_studies.open_study(digest)
        assert entry is not None
        for _ in range(12):
            await entry.update("", improved(b"".join(await entry.draw()), entropy), None)
        assert (await service.get_progress(digest))["accepted"] == 10
        assert [totals.accepted for _, totals in await service.list_totals()] == [12]

    run(tmp_path, work)


class Away(SqliteStore):
    """A store that cannot be asked for a while."""

    is_away = False

    def ping(self) -> None:
        if self.is_away:
            raise StoreError("STORE-001", "It is away.")
        super().ping()


def test_service_is_ready_while_scheduler_and_store_work(tmp_path: Path) -> None:
    async def main() -> None:
        with Away(tmp_path / "store.db") as store:
            service = CoordinatorService(
                store, MemoryInstanceStore(), ManualClock(), SeededEntropy(7), "one"
            )
            assert not await service.is_ready()
            await service.start()
            assert await service.is_ready()
            store.is_away = True
            assert not await service.is_ready()
            await service.stop()

    asyncio.run(main())


def test_enrol_rejects_closed_study(tmp_path: Path) -> None:
    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        manifest = make_manifest("anonml", closes="2030-01-01T00:00:30Z")
        digest = publish_manifest(service._store, manifest, NOW)[0].digest
        clock.advance(29)
        assert await enrol(
            service, digest, identity(0).public_key, Enrolment(ticket=ticket(0).hex()), new()
        )
        clock.advance(1)
        with pytest.raises(RemoteProtocolError, match="closed on 2030-01-01 at 00:00") as caught:
            await enrol(
                service, digest, identity(1).public_key, Enrolment(ticket=ticket(1).hex()), new()
            )
        assert caught.value.code == "ENROL-001"
        assert service._store.count_totals(digest).enrolled == 1

    run(tmp_path, work)
