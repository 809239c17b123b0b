"""Whole studies with tokens through one worker and through two: who registers, who is a member, what is told when, and who counts."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coordinator_cases import NOW, PATIENCE, hosted_of, identity, manifest_of, rows
from office_cases import new, opened, refusal, run
from orders import chance_of
from shoal.clock import ManualClock
from shoal.coordinator import office as office_module
from shoal.coordinator import received as received_module
from shoal.coordinator.aggregators import aggregator_of
from shoal.coordinator.hosting import fold
from shoal.coordinator.office import Office
from shoal.coordinator.publishing import draw_invitations, publish
from shoal.coordinator.results import result_of
from shoal.coordinator.store.base import Held, Loaded
from shoal.crypto.credentials import Credential, Registration
from shoal.crypto.tokens import pseudonym_of
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError, SpecError, UsageError
from shoal.messages.codec import decode
from shoal.protocols.anonml.messages import MESSAGES, Answer, Ask
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.base import AGGREGATOR, START, Outbound, Outcome, Sent, Started, open_hosts
from shoal.study import anonml
from shoal.study.anonymity import Window, name_of_pseudonym, scope_of
from shoal.study.manifest import Manifest
from shoal.transport.forms import Enrolment, Members, Received, Taken, from_cbor
from shoal.transport.packets import Packet, packet_size
from token_cases import RELAY, answer_of, packed, questions_of, slots_of, study_of, ticket_of, tokened


def begin(office: Office, name: str, *, epoch: str | None = None, relay: str | None = None, **options: Any) -> Manifest:
    """Publish one of the studies, with the keys of the coordinator."""
    manifest = tokened(manifest_of(name), office.keys, epoch=epoch, relay=relay)
    publish(office._store, manifest, NOW, patience=PATIENCE, issuing=office.keys.issuing, **options)
    return manifest


async def join(office: Office, manifest: Manifest, i: int, **form: Any) -> Credential:
    """Register as one of many."""
    registration, scope = Registration.draw(SeededEntropy(f"registration {i}")), scope_of(manifest)
    assert manifest.issuer_key is not None
    commitment = registration.commitment(manifest.issuer_key, scope)
    found = await office.enrol(manifest.digest.hex(), identity(i).public, Enrolment(commitment=commitment.hex(), **form), new())
    assert found.issued is not None
    return registration.accept(manifest.issuer_key, scope, bytes.fromhex(found.issued))


async def until(office: Office, digest: str, status: str) -> None:
    async with asyncio.timeout(20):
        while (await office.study(digest)).hosted.status != status:
            await asyncio.sleep(0.005)


def people_of(manifest: Manifest, credentials: list[Credential]) -> dict[str, AnonMLPeer]:
    script, (columns, labels) = anonml.script_of(manifest.study, manifest.digest), rows(manifest.study.schema(), len(credentials), 1)
    peers = {}
    for i, credential in enumerate(credentials):
        row = {feature: column[i : i + 1] for feature, column in columns.items()}
        peers[f"person-{i}"] = AnonMLPeer(manifest.digest, script, ticket_of(manifest, credential), row, labels[i : i + 1])
    return peers


def packets_of(manifest: Manifest, credentials: list[Credential], letter: bytes) -> list[bytes]:
    """What people answer to a phase, in packets."""
    aggregator, outcome, packets = aggregator_of(manifest, hosted_of("anonml")), Outcome(), []
    assert aggregator is not None
    hosts = open_hosts(aggregator, people_of(manifest, credentials), SeededEntropy(1), None)
    for i, credential in enumerate(credentials):
        host = hosts[f"person-{i}"]
        for given in (Started(), Sent(START, AGGREGATOR, f"person-{i}", letter)):
            handled = host.handle(given, START, outcome)
            host.accept(handled)
            for item in (item for item in handled.work if isinstance(item, Outbound)):
                sent = host.send(item, START, outcome)
                assert isinstance(sent, Sent)
                answer = decode(sent.payload, MESSAGES, manifest.digest)
                assert isinstance(answer, Answer)
                slot = slots_of(manifest).of_question(answer.phase, answer.question)
                packets.append(packed(manifest, credential, sent.payload, slot))
    assert (outcome.rejected, outcome.failed, outcome.aborted) == ([], [], {})
    return packets


def folded(manifest: Manifest, packets: list[bytes]) -> bytes:
    """The result of the answers in some packets, all of which come in time."""
    aggregator, answers = aggregator_of(manifest, hosted_of("anonml")), [Packet.from_bytes(one, len(one)).answer for one in packets]
    assert aggregator is not None
    ways: dict[str, Any] = {"entropy": SeededEntropy(1), "names": (), "written": partial(result_of, manifest)}
    begun = fold(aggregator, Loaded(None, (), ()), NOW, **ways)
    held = tuple(Held(i, "", answer, None) for i, answer in enumerate(answers))
    done = fold(aggregator, Loaded(begun.state, held, begun.alarms), NOW + PATIENCE, **ways)
    assert not done.rejected and done.ending is not None and done.ending.result is not None
    return done.ending.result


async def letter_of(office: Office, manifest: Manifest, after: int = 0) -> bytes:
    return (await office.board(manifest.digest.hex(), after, 5)).letters[0].payload


@pytest.mark.parametrize("name", ["anonml", "anonml paper"])
def test_a_study_with_tokens_comes_to_what_the_loop_in_memory_comes_to(tmp_path: Path, name: str) -> None:
    """As many register as are declared: so it ends when all have answered, and nobody waits for the deadline."""

    async def main() -> None:
        clock = ManualClock()
        async with opened(tmp_path, clock) as one, opened(tmp_path, clock, "two") as two, asyncio.timeout(60):
            manifest = begin(one, name)
            digest, n = manifest.digest.hex(), manifest.study.participation.size
            credentials = [await join((one, two)[i % 2], manifest, i) for i in range(n)]
            packets = packets_of(manifest, credentials, await letter_of(one, manifest))
            half = len(packets) // 2
            await asyncio.gather(*[(one, two)[i % 2].submit(digest, packet) for i, packet in enumerate(packets[:half])])
            assert (await one.study(digest)).hosted.status == "open"
            assert await two.batch(digest, packets[half:]) == Taken(taken=len(packets) - half)
            await until(one, digest, "done")
            assert json.loads(await one.model(digest))["counts"] == json.loads(folded(manifest, packets))["counts"]
            progress = await two.progress(digest)
            assert (progress["enrolled"], progress["accepted"], progress["refused"]) == (n, len(packets), {})
            # Who asks afterwards finds its own among all.
            received = from_cbor(await two.received(digest), Received)
            names = [name_of_pseudonym(pseudonym_of(Packet.from_bytes(one, packet_size(manifest)).token)) for one in packets]
            assert received == Received(phase=1, names=b"".join(sorted(names)))

    asyncio.run(main())


def test_whoever_registers_is_a_member_once_and_for_all(tmp_path: Path) -> None:
    async def work(office: Office, _: ManualClock) -> None:
        manifest = begin(office, "anonml")
        digest = manifest.digest.hex()
        first = await join(office, manifest, 1)
        assert await join(office, manifest, 1) == first
        other = Registration.draw(SeededEntropy("another")).commitment(office.keys.issuer.key, scope_of(manifest))
        again = Enrolment(commitment=other.hex())
        assert await refusal(office.enrol(digest, identity(1).public, again, new())) == "ENROL-002"
        await office.leave(digest, identity(1).public, new())
        assert await refusal(office.enrol(digest, identity(1).public, again, new())) == "ENROL-002"
        for form, code in (
            (Enrolment(), "MSG-005"),
            (Enrolment(ticket="00" * 32), "MSG-005"),
            (Enrolment(commitment="00" * 144), "TOKEN-002"),
        ):
            assert await refusal(office.enrol(digest, identity(2).public, form, new())) == code
        await join(office, manifest, 0)
        assert from_cbor(await office.members(digest), Members).keys == tuple(sorted(identity(i).public for i in range(2)))
        assert office._store.totals(digest).enrolled == 2

    run(tmp_path, work)


def test_several_who_register_at_once_with_one_key_are_told_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        async with opened(tmp_path, clock) as one, opened(tmp_path, clock, "two") as two:
            manifest = begin(one, "anonml")
            found = await asyncio.gather(*[join(office, manifest, 1) for office in (one, two) * 3])
            assert len({credential.to_bytes() for credential in found}) == 1

    asyncio.run(main())


def test_in_an_epoch_a_member_of_one_study_counts_in_all(tmp_path: Path) -> None:
    async def work(office: Office, _: ManualClock) -> None:
        code = draw_invitations(1, SeededEntropy(1))
        first = begin(office, "anonml", epoch="2030", invitations=code)
        second = begin(office, "anonml phases", epoch="2030")
        with pytest.raises(RemoteProtocolError, match="ENROL-001"):
            await join(office, first, 1)
        credential = await join(office, first, 1, invitation=code[0])
        # Without a word to the issuer, and under another pseudonym.
        for manifest in (first, second):
            question = questions_of(manifest, credential)[0]
            answer = answer_of(manifest, credential, question)
            await office.submit(manifest.digest.hex(), packed(manifest, credential, answer))
            assert office._store.totals(manifest.digest.hex()).accepted == 1
            assert from_cbor(await office.members(manifest.digest.hex()), Members).keys == (identity(1).public,)
        names = [office._store.submitted(manifest.digest.hex()) for manifest in (first, second)]
        assert names[0] != names[1]
        assert await join(office, second, 1) == credential, "a member needs no second invitation"
        with pytest.raises(RemoteProtocolError, match="ENROL-001"):
            await join(office, second, 2)
        # New people come with new codes, by whichever study of the epoch.
        more = draw_invitations(1, SeededEntropy(2))
        begin(office, "ddml", epoch="2030", invitations=more)
        await join(office, first, 2, invitation=more[0])
        with pytest.raises(RemoteProtocolError, match="ENROL-001"):
            await join(office, second, 3, invitation=more[0])
        begin(office, "anonml", epoch="2031")
        with pytest.raises(SpecError, match=r"HOST-003.*epoch"):
            begin(office, "ddml", epoch="2031", invitations=more)

    run(tmp_path, work)


async def window_of(office: Office, manifest: Manifest) -> Window:
    asked = decode(await letter_of(office, manifest), MESSAGES, manifest.digest)
    assert isinstance(asked, Ask) and asked.closes - asked.opened == timedelta(milliseconds=PATIENCE)
    return Window(asked.opened, asked.closes)


def put(clock: ManualClock, moment: datetime) -> None:
    clock.advance((moment - clock.now()).total_seconds())


def test_what_has_arrived_is_told_twice_in_a_phase_and_stands_still_meanwhile(tmp_path: Path) -> None:
    """Nobody sees single names come. What a relay hands over when the phase collects no more is on the first list."""

    async def work(office: Office, clock: ManualClock) -> None:
        manifest = begin(office, "anonml")
        digest, window = manifest.digest.hex(), await window_of(office, manifest)
        second = timedelta(seconds=1)

        async def told() -> Received:
            return from_cbor(await office.received(digest), Received)

        async def submit(i: int) -> Received:
            """Have a packet come; the list with all that have."""
            credential = await join(office, manifest, i)
            await office.submit(digest, packed(manifest, credential, answer_of(manifest, credential)))
            names = office._store.submitted(digest)
            assert len(names) == i + 1
            return Received(phase=0, names=b"".join(names))

        await submit(0)
        assert await refusal(office.received(digest)) == "HOST-002"
        put(clock, window.collects_until)
        first = await submit(1)
        put(clock, window.collects_until + (window.resends_until - window.collects_until) / 5 - second)
        assert await refusal(office.received(digest)) == "HOST-002"
        clock.advance(1)
        assert await told() == first
        await submit(2)
        freezes = window.resends_until + (window.closes - window.resends_until) / 5
        for moment in (window.resends_until, freezes - second):
            put(clock, moment)
            assert await told() == first
        later = await submit(3)
        clock.advance(1)
        assert await told() == later
        last = await submit(4)
        put(clock, window.closes - second)
        assert await told() == later
        await office.close_study(digest)
        clock.advance(0.999)
        assert await told() == later, "for a second"
        clock.advance(0.001)
        assert await told() == last.replace(phase=1)

    run(tmp_path, work)


def test_nothing_is_told_while_the_next_phase_collects(tmp_path: Path) -> None:
    async def work(office: Office, clock: ManualClock) -> None:
        manifest = begin(office, "anonml phases")
        digest, window = manifest.digest.hex(), await window_of(office, manifest)
        put(clock, window.closes - timedelta(seconds=1))
        assert from_cbor(await office.received(digest), Received) == Received(phase=0)
        put(clock, window.closes)
        await letter_of(office, manifest, 1)
        clock.advance(1)
        assert await refusal(office.received(digest)) == "HOST-002"
        await office.close_study(digest)
        clock.advance(1)
        n_phases = anonml.script_of(manifest.study, manifest.digest).n_phases
        assert from_cbor(await office.received(digest), Received) == Received(phase=n_phases)

    run(tmp_path, work)


def test_long_lists_come_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (office_module, received_module):
        monkeypatch.setattr(module, "MOST_IN_PAGE", 2)

    async def work(office: Office, clock: ManualClock) -> None:
        manifest = begin(office, "anonml")
        digest = manifest.digest.hex()
        for i in range(5):
            credential = await join(office, manifest, i)
            await office.submit(digest, packed(manifest, credential, answer_of(manifest, credential)))
        await office.close_study(digest)
        for ask, kind, everything in (
            (office.members, Members, office._store.members(digest)),
            (office.received, Received, office._store.submitted(digest)),
        ):
            found: list[bytes] = []
            for n in (2, 2, 1):
                page = from_cbor(await ask(digest, found[-1] if found else b""), kind)
                names = page.joined if isinstance(page, Members) else page.names
                assert len(names) == 32 * n
                found += [names[at : at + 32] for at in range(0, len(names), 32)]
            assert tuple(found) == everything

    run(tmp_path, work)


def test_what_a_study_without_tokens_does_not_have(tmp_path: Path) -> None:
    async def work(office: Office, clock: ManualClock) -> None:
        publish(office._store, manifest_of("anonml"), NOW)
        devices, tickets = begin(office, "ddml"), manifest_of("anonml").digest.hex()
        for call in (office.members(tickets), office.received(tickets), office.batch(tickets, []), office.received(devices.digest.hex())):
            assert await refusal(call) == "HOST-001"
        assert from_cbor(await office.members(devices.digest.hex()), Members) == Members()
        clock.advance(1)
        credential = await join(office, devices, 1)
        assert credential.place == 0 and len(from_cbor(await office.members(devices.digest.hex()), Members).keys) == 1

    run(tmp_path, work)


def test_the_keys_of_a_coordinator_are_told_and_those_of_another_refused(tmp_path: Path) -> None:
    async def work(office: Office, _: ManualClock) -> None:
        issuing = await office.issuing()
        assert issuing == office.keys.issuing and office.gateway.key == office.keys.gateway_key == bytes.fromhex(issuing.gateway_key)
        ours = tokened(manifest_of("anonml"), office.keys, relay=RELAY)
        assert (await office.publish(ours.to_bytes())).scope == scope_of(ours)
        with pytest.raises(SpecError, match=r"HOST-003.*issuer key"):
            await office.publish(study_of("anonml").to_bytes())

    run(tmp_path, work)


def test_a_coordinator_without_the_libraries_issues_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(seed: bytes) -> None:
        raise UsageError("USAGE-002", "It is not installed.")

    async def work(office: Office, _: ManualClock) -> None:
        monkeypatch.setattr("shoal.crypto.credentials.Issuer.from_seed", missing)
        assert await refusal(office.issuing()) == "HOST-001"

    run(tmp_path, work)


def test_no_file_of_a_coordinator_links_a_member_to_a_packet(tmp_path: Path) -> None:
    """Each has registered and sent before the next one comes; what is kept says who is a member and what came, in orders of their own."""
    n, alpha = 40, 1e-9
    told: list[tuple[bytes, bytes]] = []
    secret: set[bytes] = set()

    async def work(office: Office, _: ManualClock) -> None:
        manifest = begin(office, "anonml")
        for i in range(n):
            credential = await join(office, manifest, i)
            answer = answer_of(manifest, credential)
            packet, pseudonym = packed(manifest, credential, answer), credential.pseudonym(slots_of(manifest).context(0))
            await office.submit(manifest.digest.hex(), packet)
            told.append((identity(i).public, name_of_pseudonym(pseudonym)))
            secret.update((pseudonym, ticket_of(manifest, credential), answer[:40], packet[1:497]))
        while office._store.totals(manifest.digest.hex()).waiting:
            await asyncio.sleep(0.01)
        office._store.tidy(NOW)

    run(tmp_path, work)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert list(kept) == ["store.db"]
    data = kept["store.db"]
    # All of the needles are of the right kind: what is kept is found.
    assert all(key in data and name in data for key, name in told)
    assert not [one for one in secret for form in (one, one.hex().encode()) if form in data]
    for at in (data.index, data.rindex):
        assert chance_of([(at(key), at(name)) for key, name in told]) > alpha
        assert chance_of([(i, at(key)) for i, (key, _) in enumerate(told)]) > alpha
