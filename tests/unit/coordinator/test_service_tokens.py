"""Complete studies with tokens: registration, membership, published lists, and counting."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shoal.clock import ManualClock
from shoal.coordinator import enrolment
from shoal.coordinator import receipts as received_module
from shoal.coordinator.publishing import draw_invitations
from shoal.coordinator.scheduler import apply_inputs
from shoal.coordinator.service import CoordinatorService
from shoal.coordinator.store.base import PendingInput, StudySnapshot
from shoal.coordinator.studies import encode_result
from shoal.crypto.credentials.issuance import Credential, Registration
from shoal.crypto.credentials.tokens import read_pseudonym
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, SpecError, UsageError
from shoal.messages.codec import decode
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAnswer, AnonMLAsk
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    OutgoingMessage,
    ProtocolOutcome,
    SentMessage,
    Started,
    open_hosts,
)
from shoal.study import anonml
from shoal.study.delivery import compute_scope, hash_pseudonym
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from shoal.study.schedule import PhaseWindow
from shoal.transport.api import BatchReceipt, Enrolment, MemberList, ReceivedPackets, from_cbor
from shoal.transport.packets import Packet
from shoal.transport.signing import verify_broadcast
from tests.support.coordinator import (
    NOW,
    PATIENCE,
    accept_batch,
    enrol,
    get_model,
    identity,
    make_aggregator,
    make_manifest,
    make_record,
    new,
    opened,
    publish_manifest,
    refusal,
    rows,
    run,
    submit,
)
from tests.support.credentials import (
    RELAY,
    derive_ticket,
    list_questions,
    make_answer,
    make_slots,
    make_study,
    packed,
    tokened,
)
from tests.support.machines import compute_chance
from tests.support.participants import compute_packet_size


def begin(
    service: CoordinatorService,
    name: str,
    *,
    epoch: str | None = None,
    relay: str | None = None,
    **options: Any,
) -> Manifest:
    """Publish one of the studies, with the keys of the coordinator."""
    manifest = tokened(make_manifest(name), service.keys, epoch=epoch, relay=relay)
    publish_manifest(
        service._store,
        manifest,
        NOW,
        phase_timeout=PATIENCE,
        issuing=service.keys.public_keys,
        **options,
    )
    return manifest


async def join(service: CoordinatorService, manifest: Manifest, i: int, **form: Any) -> Credential:
    """Register as one of many."""
    registration, scope = (
        Registration.draw(SeededEntropy(f"registration {i}")),
        compute_scope(manifest),
    )
    assert manifest.issuer_key is not None
    commitment = registration.make_commitment(manifest.issuer_key, scope)
    found = await enrol(
        service,
        manifest.digest.hex(),
        identity(i).public_key,
        Enrolment(commitment=commitment.hex(), **form),
        new(),
    )
    assert found.issued is not None
    return registration.accept(manifest.issuer_key, scope, bytes.fromhex(found.issued))


async def until(service: CoordinatorService, digest: str, status: str) -> None:
    async with asyncio.timeout(20):
        while (await service.get_study(digest)).record.status != status:
            await asyncio.sleep(0.005)


def people_of(manifest: Manifest, credentials: list[Credential]) -> dict[str, AnonMLPeer]:
    script, (columns, labels) = (
        anonml.build_script(manifest.study, manifest.digest),
        rows(manifest.study.schema(), len(credentials), 1),
    )
    peers = {}
    for i, credential in enumerate(credentials):
        row = {feature: column[i : i + 1] for feature, column in columns.items()}
        peers[f"person-{i}"] = AnonMLPeer(
            manifest.digest, script, derive_ticket(manifest, credential), row, labels[i : i + 1]
        )
    return peers


def packets_of(manifest: Manifest, credentials: list[Credential], message: bytes) -> list[bytes]:
    """What people answer to a phase, in packets."""
    aggregator, outcome, packets = (
        make_aggregator(manifest, make_record("anonml")),
        ProtocolOutcome(),
        [],
    )
    assert aggregator is not None
    hosts = open_hosts(aggregator, people_of(manifest, credentials), SeededEntropy(1), None)
    for i, credential in enumerate(credentials):
        host = hosts[f"person-{i}"]
        for given in (Started(), SentMessage(START, AGGREGATOR, f"person-{i}", message)):
            handled = host.handle(given, START, outcome)
            host.commit(handled)
            for item in (item for item in handled.work if isinstance(item, OutgoingMessage)):
                sent = host.begin_send(item, START, outcome)
                assert isinstance(sent, SentMessage)
                answer = decode(sent.payload, MESSAGES, manifest.digest)
                assert isinstance(answer, AnonMLAnswer)
                slot = make_slots(manifest).find_question_slot(answer.phase, answer.question)
                packets.append(packed(manifest, credential, sent.payload, slot))
    assert (outcome.rejected, outcome.failed, outcome.aborted) == ([], [], {})
    return packets


def folded(manifest: Manifest, packets: list[bytes]) -> bytes:
    """The result of the answers in some packets, all of which come in time."""
    aggregator, answers = (
        make_aggregator(manifest, make_record("anonml")),
        [Packet.from_bytes(one, len(one)).answer for one in packets],
    )
    assert aggregator is not None
    ways: dict[str, Any] = {
        "entropy": SeededEntropy(1),
        "names": (),
        "encode_result": partial(encode_result, StudyHandle(manifest)),
    }
    begun = apply_inputs(aggregator, StudySnapshot(None, (), ()), NOW, **ways)
    held = tuple(PendingInput(i, "", answer, None) for i, answer in enumerate(answers))
    done = apply_inputs(
        aggregator, StudySnapshot(begun.state, held, begun.alarms), NOW + PATIENCE, **ways
    )
    assert (
        not done.rejection_counts and done.outcome is not None and done.outcome.result is not None
    )
    return done.outcome.result


async def fetch_message(service: CoordinatorService, manifest: Manifest, after: int = 0) -> bytes:
    return (await service.mailbox.fetch(manifest.digest.hex(), None, after, 5)).letters[0].payload


@pytest.mark.parametrize("name", ["anonml", "anonml paper"])
def test_study_with_tokens_gives_result_of_local_run(tmp_path: Path, name: str) -> None:
    """As many register as are declared: so it ends when all have answered, and nobody waits for the
    deadline.
    """

    async def main() -> None:
        clock = ManualClock()
        async with (
            opened(tmp_path, clock) as one,
            opened(tmp_path, clock, "two") as two,
            asyncio.timeout(60),
        ):
            manifest = begin(one, name)
            digest, n = manifest.digest.hex(), manifest.study.participation.size
            credentials = [await join((one, two)[i % 2], manifest, i) for i in range(n)]
            packets = packets_of(manifest, credentials, await fetch_message(one, manifest))
            half = len(packets) // 2
            await asyncio.gather(
                *[
                    submit((one, two)[i % 2], digest, packet)
                    for i, packet in enumerate(packets[:half])
                ]
            )
            assert (await one.get_study(digest)).record.status == "open"
            assert await accept_batch(two, digest, packets[half:]) == BatchReceipt(
                taken=len(packets) - half
            )
            await until(one, digest, "done")
            assert (
                json.loads(await get_model(one, digest))["counts"]
                == json.loads(folded(manifest, packets))["counts"]
            )
            progress = await two.get_progress(digest)
            assert (progress["enrolled"], progress["accepted"], progress["refused"]) == (
                n,
                len(packets),
                {},
            )
            # Who asks afterwards finds its own among all.
            received = from_cbor(await two.list_received(digest), ReceivedPackets)
            names = [
                hash_pseudonym(
                    read_pseudonym(Packet.from_bytes(one, compute_packet_size(manifest)).token)
                )
                for one in packets
            ]
            assert received == ReceivedPackets(phase=1, names=b"".join(sorted(names)))

    asyncio.run(main())


def test_registration_is_permanent_and_single(tmp_path: Path) -> None:
    async def work(service: CoordinatorService, _: ManualClock) -> None:
        manifest = begin(service, "anonml")
        digest = manifest.digest.hex()
        first = await join(service, manifest, 1)
        assert await join(service, manifest, 1) == first
        other = Registration.draw(SeededEntropy("another")).make_commitment(
            service.keys.issuer.key, compute_scope(manifest)
        )
        again = Enrolment(commitment=other.hex())
        assert (
            await refusal(enrol(service, digest, identity(1).public_key, again, new()))
            == "ENROL-002"
        )
        await service.registrar.leave(digest, identity(1).public_key, new())
        assert (
            await refusal(enrol(service, digest, identity(1).public_key, again, new()))
            == "ENROL-002"
        )
        for form, code in (
            (Enrolment(), "MSG-005"),
            (Enrolment(ticket="00" * 32), "MSG-005"),
            (Enrolment(commitment="00" * 144), "TOKEN-002"),
        ):
            assert (
                await refusal(enrol(service, digest, identity(2).public_key, form, new())) == code
            )
        await join(service, manifest, 0)
        assert from_cbor(await service.list_members(digest), MemberList).keys == tuple(
            sorted(identity(i).public_key for i in range(2))
        )
        assert service._store.count_totals(digest).enrolled == 2

    run(tmp_path, work)


def test_concurrent_registrations_of_one_key_return_same_credential(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with opened(tmp_path, clock) as one, opened(tmp_path, clock, "two") as two:
            manifest = begin(one, "anonml")
            found = await asyncio.gather(
                *[join(service, manifest, 1) for service in (one, two) * 3]
            )
            assert len({credential.to_bytes() for credential in found}) == 1

    asyncio.run(main())


def count_signatures(service: CoordinatorService, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with each signature of the issuer."""
    issue, signed = service.registrar._issue, []

    def count(*arguments: Any) -> bytes:
        signed.append(1)
        return issue(*arguments)

    monkeypatch.setattr(service.registrar, "_issue", count)
    return signed


def test_rejected_registration_costs_no_signature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(service: CoordinatorService, _: ManualClock) -> None:
        invited = begin(service, "anonml", invitations=draw_invitations(1, SeededEntropy(1)))
        closed = begin(service, "anonml phases")
        await service.close_study(closed.digest.hex())
        signed = count_signatures(service, monkeypatch)
        for manifest, form in ((invited, {}), (invited, {"invitation": "unknown"}), (closed, {})):
            with pytest.raises(RemoteProtocolError, match="ENROL-001"):
                await join(service, manifest, 1, **form)
        assert signed == []
        # One request again and again, with a commitment that only the issuer can reject.
        digest, open_study, nonce = "", begin(service, "anonml paper"), new()
        digest, rubbish = open_study.digest.hex(), Enrolment(commitment="00" * 144)
        codes = [
            await refusal(enrol(service, digest, identity(1).public_key, rubbish, nonce))
            for _ in range(5)
        ]
        assert codes == ["TOKEN-002"] + ["AUTH-005"] * 4 and len(signed) == 1
        # Copies that are sent at the same time wait for nothing and sign nothing.
        form = Enrolment(commitment="11" * 144)
        together = [
            refusal(enrol(service, digest, identity(2).public_key, form, b"the same nonce"))
            for _ in range(5)
        ]
        assert sorted(await asyncio.gather(*together)) == ["AUTH-005"] * 4 + ["TOKEN-002"]
        assert len(signed) == 2
        await join(service, open_study, 1)

    run(tmp_path, work)


def test_registrations_stop_at_multiple_of_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The studies of an epoch share their members, and their capacities add up."""
    monkeypatch.setattr(enrolment, "compute_max_members", lambda size: size // 30)

    async def work(service: CoordinatorService, _: ManualClock) -> None:
        alone, first = begin(service, "anonml paper"), begin(service, "anonml", epoch="2030")
        signed = count_signatures(service, monkeypatch)
        for manifest in (alone, first):
            for i in range(2):
                await join(service, manifest, i)
            with pytest.raises(RemoteProtocolError, match=r"ENROL-001.*has 2 members"):
                await join(service, manifest, 2)
        assert len(signed) == 4
        begin(service, "anonml phases", epoch="2030")
        await join(service, first, 2)
        await join(service, first, 3)
        with pytest.raises(RemoteProtocolError, match=r"ENROL-001.*has 4 members"):
            await join(service, first, 4)

    run(tmp_path, work)


def test_keys_do_not_share_commitment(tmp_path: Path) -> None:
    async def work(service: CoordinatorService, _: ManualClock) -> None:
        manifest = begin(service, "anonml")
        commitment = Registration.draw(SeededEntropy("one")).make_commitment(
            service.keys.issuer.key, compute_scope(manifest)
        )
        form, digest = Enrolment(commitment=commitment.hex()), manifest.digest.hex()
        await enrol(service, digest, identity(1).public_key, form, new())
        for i in range(2, 5):
            assert (
                await refusal(enrol(service, digest, identity(i).public_key, form, new()))
                == "ENROL-002"
            )
        assert service._store.count_totals(digest).enrolled == 1

    run(tmp_path, work)


def test_member_of_one_study_counts_in_all_of_epoch(tmp_path: Path) -> None:
    async def work(service: CoordinatorService, _: ManualClock) -> None:
        code = draw_invitations(1, SeededEntropy(1))
        first = begin(service, "anonml", epoch="2030", invitations=code)
        second = begin(service, "anonml phases", epoch="2030")
        with pytest.raises(RemoteProtocolError, match="ENROL-001"):
            await join(service, first, 1)
        credential = await join(service, first, 1, invitation=code[0])
        # Without a word to the issuer, and under another pseudonym.
        for manifest in (first, second):
            question = list_questions(manifest, credential)[0]
            answer = make_answer(manifest, credential, question)
            await submit(service, manifest.digest.hex(), packed(manifest, credential, answer))
            assert service._store.count_totals(manifest.digest.hex()).accepted == 1
            assert from_cbor(
                await service.list_members(manifest.digest.hex()), MemberList
            ).keys == (identity(1).public_key,)
        names = [
            service._store.list_submissions(manifest.digest.hex()) for manifest in (first, second)
        ]
        assert names[0] != names[1]
        assert await join(service, second, 1) == credential, "a member needs no second invitation"
        with pytest.raises(RemoteProtocolError, match="ENROL-001"):
            await join(service, second, 2)
        # New people come with new codes, by whichever study of the epoch.
        more = draw_invitations(1, SeededEntropy(2))
        begin(service, "ddml", epoch="2030", invitations=more)
        await join(service, first, 2, invitation=more[0])
        with pytest.raises(RemoteProtocolError, match="ENROL-001"):
            await join(service, second, 3, invitation=more[0])
        begin(service, "anonml", epoch="2031")
        with pytest.raises(SpecError, match=r"HOST-003.*epoch"):
            begin(service, "ddml", epoch="2031", invitations=more)

    run(tmp_path, work)


def test_registration_ends_with_joining_time_of_last_phase(tmp_path: Path) -> None:
    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        manifest = begin(service, "anonml")
        window = await window_of(service, manifest)
        await join(service, manifest, 0)
        put(clock, window.joins_until)
        with pytest.raises(RemoteProtocolError, match=r"ENROL-001.*Registration ended") as caught:
            await join(service, manifest, 1)
        assert "2030-01-01 at 00:00:30 UTC" in caught.value.what

    run(tmp_path, work)


def test_board_of_study_with_tokens_is_signed(tmp_path: Path) -> None:
    async def work(service: CoordinatorService, _clock: ManualClock) -> None:
        manifest = begin(service, "anonml")
        digest = manifest.digest.hex()
        pages = [await service.mailbox.fetch(digest, None, 0, 10) for _ in range(2)]
        assert pages[0] == pages[1]
        (message,) = pages[0].letters
        verify_broadcast(
            service.identity.public_key,
            manifest.digest,
            message.number,
            message.payload,
            message.signature,
        )

    run(tmp_path, work)


async def window_of(service: CoordinatorService, manifest: Manifest) -> PhaseWindow:
    asked = decode(await fetch_message(service, manifest), MESSAGES, manifest.digest)
    assert isinstance(asked, AnonMLAsk) and asked.closes - asked.opened == timedelta(
        milliseconds=PATIENCE
    )
    return PhaseWindow(asked.opened, asked.closes)


def put(clock: ManualClock, moment: datetime) -> None:
    clock.advance((moment - clock.now()).total_seconds())


def test_received_list_is_published_twice_in_phase_and_frozen_between(
    tmp_path: Path,
) -> None:
    """Nobody sees single names come. What a relay hands over when the phase collects no more is on
    the first list.
    """

    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        manifest = begin(service, "anonml")
        digest, window = manifest.digest.hex(), await window_of(service, manifest)
        second = timedelta(seconds=1)
        credentials = [await join(service, manifest, i) for i in range(5)]

        async def told() -> ReceivedPackets:
            return from_cbor(await service.list_received(digest), ReceivedPackets)

        async def submit_next(i: int) -> ReceivedPackets:
            """Submit a packet; return the list of all packets."""
            credential = credentials[i]
            await submit(
                service, digest, packed(manifest, credential, make_answer(manifest, credential))
            )
            names = service._store.list_submissions(digest)
            assert len(names) == i + 1
            return ReceivedPackets(phase=0, names=b"".join(names))

        await submit_next(0)
        assert await refusal(service.list_received(digest)) == "HOST-002"
        put(clock, window.collects_until)
        first = await submit_next(1)
        put(
            clock,
            window.collects_until + (window.resends_until - window.collects_until) / 5 - second,
        )
        assert await refusal(service.list_received(digest)) == "HOST-002"
        clock.advance(1)
        assert await told() == first
        await submit_next(2)
        freezes = window.resends_until + (window.closes - window.resends_until) / 5
        for moment in (window.resends_until, freezes - second):
            put(clock, moment)
            assert await told() == first
        later = await submit_next(3)
        clock.advance(1)
        assert await told() == later
        last = await submit_next(4)
        put(clock, window.closes - second)
        assert await told() == later
        await service.close_study(digest)
        clock.advance(0.999)
        assert await told() == later, "for a second"
        clock.advance(0.001)
        assert await told() == last.replace(phase=1)

    run(tmp_path, work)


def test_received_list_is_hidden_while_next_phase_collects(tmp_path: Path) -> None:
    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        manifest = begin(service, "anonml phases")
        digest, window = manifest.digest.hex(), await window_of(service, manifest)
        put(clock, window.closes - timedelta(seconds=1))
        assert from_cbor(await service.list_received(digest), ReceivedPackets) == ReceivedPackets(
            phase=0
        )
        put(clock, window.closes)
        await fetch_message(service, manifest, 1)
        clock.advance(1)
        assert await refusal(service.list_received(digest)) == "HOST-002"
        await service.close_study(digest)
        clock.advance(1)
        n_phases = anonml.build_script(manifest.study, manifest.digest).n_phases
        assert from_cbor(await service.list_received(digest), ReceivedPackets) == ReceivedPackets(
            phase=n_phases
        )

    run(tmp_path, work)


def test_long_lists_are_paged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received_module, "LEAST_IN_PAGE", 2)
    monkeypatch.setattr(received_module, "MOST_IN_PAGE", 3)

    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        manifest = begin(service, "anonml")
        digest = manifest.digest.hex()
        for i in range(5):
            credential = await join(service, manifest, i)
            await submit(
                service, digest, packed(manifest, credential, make_answer(manifest, credential))
            )
        await service.close_study(digest)
        for ask, kind, everything in (
            (service.list_members, MemberList, service._store.list_members(digest)),
            (service.list_received, ReceivedPackets, service._store.list_submissions(digest)),
        ):
            found: list[bytes] = []
            for n in (2, 2, 1, 0):
                page = from_cbor(await ask(digest, found[-1] if found else b""), kind)
                names = page.joined if isinstance(page, MemberList) else page.names
                assert len(names) == 32 * n
                found += [names[at : at + 32] for at in range(0, len(names), 32)]
            assert tuple(found) == everything

    run(tmp_path, work)


def test_study_without_tokens_has_no_lists_or_batches(tmp_path: Path) -> None:
    async def work(service: CoordinatorService, clock: ManualClock) -> None:
        publish_manifest(service._store, make_manifest("anonml"), NOW)
        devices, tickets = begin(service, "ddml"), make_manifest("anonml").digest.hex()
        for call in (
            service.list_members(tickets),
            service.list_received(tickets),
            accept_batch(service, tickets, []),
            service.list_received(devices.digest.hex()),
        ):
            assert await refusal(call) == "HOST-001"
        assert (
            from_cbor(await service.list_members(devices.digest.hex()), MemberList) == MemberList()
        )
        clock.advance(1)
        credential = await join(service, devices, 1)
        assert (
            credential.partition == 0
            and len(from_cbor(await service.list_members(devices.digest.hex()), MemberList).keys)
            == 1
        )

    run(tmp_path, work)


def test_publish_rejects_keys_of_other_coordinator(tmp_path: Path) -> None:
    async def work(service: CoordinatorService, _: ManualClock) -> None:
        issuing = await service.get_issuing_keys()
        assert (
            issuing == service.keys.public_keys
            and service.gateway.key
            == service.keys.gateway_key
            == bytes.fromhex(issuing.gateway_key)
        )
        ours = tokened(make_manifest("anonml"), service.keys, relay=RELAY)
        assert (await service.publish(ours.to_bytes())).scope == compute_scope(ours)
        with pytest.raises(SpecError, match=r"HOST-003.*issuer key"):
            await service.publish(make_study("anonml").to_bytes())

    run(tmp_path, work)


def test_coordinator_without_extra_issues_no_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(seed: bytes) -> None:
        raise UsageError("USAGE-002", "It is not installed.")

    async def work(service: CoordinatorService, _: ManualClock) -> None:
        monkeypatch.setattr("shoal.crypto.credentials.issuance.Issuer.from_seed", missing)
        assert await refusal(service.get_issuing_keys()) == "HOST-001"

    run(tmp_path, work)


def test_no_file_links_member_to_packet(tmp_path: Path) -> None:
    """Each has registered and sent before the next one comes; what is kept says who is a member and
    what came, in orders of their own.
    """
    n, alpha = 40, 1e-9
    told: list[tuple[bytes, bytes]] = []
    secret: set[bytes] = set()

    async def work(service: CoordinatorService, _: ManualClock) -> None:
        manifest = begin(service, "anonml")
        for i in range(n):
            credential = await join(service, manifest, i)
            answer = make_answer(manifest, credential)
            packet, pseudonym = (
                packed(manifest, credential, answer),
                credential.compute_pseudonym(make_slots(manifest).encode_context(0)),
            )
            await submit(service, manifest.digest.hex(), packet)
            told.append((identity(i).public_key, hash_pseudonym(pseudonym)))
            secret.update(
                (pseudonym, derive_ticket(manifest, credential), answer[:40], packet[1:497])
            )
        while service._store.count_totals(manifest.digest.hex()).waiting:
            await asyncio.sleep(0.01)
        service._store.tidy(NOW)

    run(tmp_path, work)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert list(kept) == ["store.db"]
    data = kept["store.db"]
    # All of the needles are of the right kind: what is kept is found.
    assert all(key in data and name in data for key, name in told)
    assert not [one for one in secret for form in (one, one.hex().encode()) if form in data]
    for at in (data.index, data.rindex):
        assert compute_chance([(at(key), at(name)) for key, name in told]) > alpha
        assert compute_chance([(i, at(key)) for i, (key, _) in enumerate(told)]) > alpha
