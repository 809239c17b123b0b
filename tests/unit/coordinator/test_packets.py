"""Packets with tokens get in once for everyone, whoever else sends what; and shuffled ones in batches alone."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coordinator_cases import NOW
from shoal.coordinator.keys import Keys
from shoal.coordinator.packets import MOST_TOKENS, PacketIntake
from shoal.coordinator.publishing import publish
from shoal.coordinator.refusals import Refusals
from shoal.coordinator.store.base import Ending
from shoal.coordinator.store.sqlite import SqliteStore
from shoal.errors import RemoteProtocolError
from shoal.messages.codec import encode
from shoal.protocols.anonml.messages import Answer, Ask, Publication
from shoal.study.anonymity import name_of_pseudonym
from shoal.study.manifest import Manifest
from shoal.transport import batches
from shoal.transport.forms import Taken
from shoal.transport.packets import Packet, packet_size
from token_cases import KEYS, RELAY, answer_of, member, packed, packet_of, questions_of, slots_of, study_of, ticket_of

PEOPLE, PAPER, PHASES = study_of("anonml"), study_of("anonml paper"), study_of("anonml phases")


class Desk:
    """An intake with all around it."""

    def __init__(self, manifest: Manifest, store: SqliteStore, executor: ThreadPoolExecutor, verifying: ThreadPoolExecutor) -> None:
        self.manifest, self.store = manifest, store
        self.study = publish(store, manifest, NOW, issuing=KEYS.issuing)[0].digest
        self.refusals, self.woken = Refusals(), 0
        self.intake = PacketIntake(store, manifest, executor, verifying, self.refusals, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    @property
    def held(self) -> list[bytes]:
        return [one.payload for one in self.store.load(self.study, NOW, 10_000).held]

    async def refused(self) -> dict[str, int]:
        await self.refusals.flush(self.store)
        return dict(self.store.totals(self.study).refused)


def run(tmp_path: Path, manifest: Manifest, work: Callable[[Desk], Awaitable[None]]) -> None:
    async def main() -> None:
        with SqliteStore(tmp_path / "store.db") as store, ThreadPoolExecutor(2) as executor, ThreadPoolExecutor(1) as verifying:
            await work(Desk(manifest, store, executor, verifying))

    asyncio.run(main())


def answer_in(packet: bytes, manifest: Manifest = PEOPLE) -> bytes:
    return Packet.from_bytes(packet, packet_size(manifest)).answer


def stranger() -> bytes:
    """A packet of somebody whom another issuer has made a member."""
    other = Keys(bytes(32))
    credential = member(PEOPLE, 1, other)
    return packed(PEOPLE, credential, answer_of(PEOPLE, credential))


def with_other_question(i: int) -> bytes:
    credential = member(PEOPLE, i)
    phase, question = questions_of(PEOPLE, credential)[0]
    return packed(PEOPLE, credential, answer_of(PEOPLE, credential, (phase, question + 1 if question == 0 else question - 1)))


def with_other_ticket(i: int) -> bytes:
    """An answer under the ticket of somebody else, whose question suits the sender better."""
    theirs = answer_of(PEOPLE, member(PEOPLE, i + 1))
    return packed(PEOPLE, member(PEOPLE, i), theirs)


def rebound(i: int) -> bytes:
    """A token taken from one packet, with another answer beside it."""
    one, other = (answer_of(PEOPLE, member(PEOPLE, i), report=report) for report in (b"\1", b"\2"))
    token = Packet.from_bytes(packed(PEOPLE, member(PEOPLE, i), one), packet_size(PEOPLE)).token
    return Packet(token, 0, other).to_bytes(packet_size(PEOPLE))


def late_phase(i: int) -> bytes:
    credential = member(PEOPLE, i)
    _, question = questions_of(PEOPLE, credential)[0]
    ticket = ticket_of(PEOPLE, credential)
    answer = encode(Answer(study=PEOPLE.digest, ticket=ticket, phase=7, question=question, report=b"\1"))
    return packed(PEOPLE, credential, answer)


def not_an_answer(i: int) -> bytes:
    ask = encode(Ask(study=PEOPLE.digest, phase=0, publication=Publication()))
    return packed(PEOPLE, member(PEOPLE, i), ask)


def of_a_place(i: int) -> bytes:
    return packed(PEOPLE, member(PEOPLE, i), answer_of(PEOPLE, member(PEOPLE, i)), place=1)


BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "MSG-005"),
    "rubbish": (bytes(packet_size(PEOPLE)), "MSG-005"),
    "cut short": (packet_of(PEOPLE, 0)[:-1], "MSG-005"),
    "not an answer": (not_an_answer(0), "PROTO-003"),
    "another study's answer": (packed(PEOPLE, member(PEOPLE, 0), answer_of(PHASES, member(PHASES, 0))), "MSG-006"),
    "another question": (with_other_question(0), "ANONML-001"),
    "a phase that there is not": (late_phase(0), "ANONML-001"),
    "somebody else's ticket": (with_other_ticket(0), "ANONML-001"),
    "no member": (stranger(), "TOKEN-001"),
    "another answer": (rebound(0), "TOKEN-001"),
    "another place": (of_a_place(0), "TOKEN-001"),
    "another slot": (packed(PEOPLE, member(PEOPLE, 0), answer_of(PEOPLE, member(PEOPLE, 0)), slot=1), "ANONML-001"),
}


@pytest.mark.parametrize("how", BAD)
def test_a_bad_packet_is_counted_and_leaves_nothing(tmp_path: Path, how: str) -> None:
    packet, code = BAD[how]

    async def work(desk: Desk) -> None:
        await desk.intake.submit(packet)
        assert await desk.intake.batch([packet]) == Taken(taken=0, invalid=(0,))
        assert (await desk.refused(), desk.held, desk.woken) == ({code: 2}, [], 0)
        assert desk.store.submitted(desk.study) == ()
        # Whose packet it pretends to be can send its own all the same.
        await desk.intake.submit(packet_of(PEOPLE, 0))
        assert len(desk.held) == 1

    run(tmp_path, PEOPLE, work)


def test_everyone_counts_once(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        packets = [packet_of(PEOPLE, i) for i in range(6)]
        anew = packed(PEOPLE, member(PEOPLE, 0), answer_of(PEOPLE, member(PEOPLE, 0)), seed=9)
        for packet in (*packets[:3], packets[0], anew, packet_of(PEOPLE, 0, b"\2")):
            await desk.intake.submit(packet)
        assert await desk.intake.batch([*packets, packet_of(PEOPLE, 5, b"\3")]) == Taken(taken=6, invalid=(6,))
        assert sorted(desk.held) == sorted(answer_in(packet) for packet in packets)
        assert await desk.refused() == {"HOST-005": 2}
        pseudonyms = [member(PEOPLE, i).pseudonym(slots_of(PEOPLE).context(0)) for i in range(6)]
        assert desk.store.submitted(desk.study) == tuple(sorted(name_of_pseudonym(one) for one in pseudonyms))
        assert desk.store.totals(desk.study).accepted == 6 and desk.woken >= 2
        desk.store.end(desk.study, Ending("closed"))
        await desk.intake.submit(packet_of(PEOPLE, 7))
        with pytest.raises(RemoteProtocolError, match="HOST-002"):
            await desk.intake.batch([packet_of(PEOPLE, 7)])
        # What was held came too late as well.
        assert await desk.refused() == {"HOST-002": 7, "HOST-005": 2}

    run(tmp_path, PEOPLE, work)


def test_a_person_answers_each_of_its_questions_under_a_name_of_its_own(tmp_path: Path) -> None:
    """Variant paper: the place decides the partition, and so the questions."""

    async def work(desk: Desk) -> None:
        credentials = [member(PAPER, i) for i in range(2)]
        assert [credential.place for credential in credentials] == [0, 1]
        asked = [questions_of(PAPER, credential) for credential in credentials]
        assert asked[0] != asked[1]
        for credential, own, theirs in zip(credentials, asked, reversed(asked), strict=True):
            for place, questions in ((credential.place, own), (credential.place, theirs), (1 - credential.place, theirs)):
                for phase, question in questions:
                    slot = slots_of(PAPER).of_question(phase, question)
                    ticket = slots_of(PAPER).ticket(b"", place)
                    answer = encode(Answer(study=PAPER.digest, ticket=ticket, phase=phase, question=question, report=b"\1"))
                    await desk.intake.submit(packed(PAPER, credential, answer, slot, place=place))
        # Their own are in; others are not theirs to answer, and no token is valid for another place than its own.
        assert len(desk.held) == 2 and await desk.refused() == {"ANONML-001": 2, "TOKEN-001": 2}
        await desk.intake.submit(packed(PAPER, credentials[0], answer_of(PAPER, credentials[0]), place=77))
        assert (await desk.refused())["ANONML-001"] == 3

    run(tmp_path, PAPER, work)


def test_many_at_once_are_verified_together_and_accepted_together(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        sizes, verify_many = [], desk.intake._verifier.verify_many
        desk.intake._verifier.verify_many = lambda many: sizes.append(len(many)) or verify_many(many)  # type: ignore[method-assign, func-returns-value]
        bad = [BAD["another answer"][0]] * 10
        await asyncio.gather(*[desk.intake.submit(packet) for packet in (*bad, *(packet_of(PEOPLE, i) for i in range(20)))])
        assert len(desk.held) == 20 and await desk.refused() == {"TOKEN-001": 10}
        assert len(sizes) <= 3 and max(sizes) <= MOST_TOKENS

    run(tmp_path, PEOPLE, work)


def test_shuffled_packets_come_in_batches_of_the_minimum_or_not_at_all(tmp_path: Path) -> None:
    shuffled = study_of("shuffled", relay=RELAY)

    async def work(desk: Desk) -> None:
        minimum = shuffled.study.participation.minimum
        assert desk.intake._least == batches.least_in_part(packet_size(shuffled), minimum) == minimum
        # As many as a study of this trust needs would take a while.
        desk.intake._least = 5
        packets = [packet_of(shuffled, i) for i in range(5)]
        await desk.intake.submit(packets[0])
        # The same one again, under the same name or with other bytes, makes no crowd.
        for few in (packets[:4], [*packets[:4], packets[3]], [*packets[:4], packet_of(shuffled, 3, b"\2")], [*packets[:4], b""], []):
            assert await desk.intake.batch(few) == Taken(taken=None, invalid=tuple(range(4, len(few))))
        assert (desk.held, desk.woken) == ([], 0)
        assert await desk.refused() == {"MSG-005": 1, "PROTO-003": 6}, "and counted once each"
        # One that was not acknowledged comes again.
        for _ in range(2):
            assert await desk.intake.batch([b"", *packets]) == Taken(taken=5, invalid=(0,))
        assert len(desk.held) == 5

    run(tmp_path, shuffled, work)


def test_what_is_kept_of_an_answer_does_not_give_it_back(tmp_path: Path) -> None:
    """In paper everything in an answer but the report is public: of a digest of it alone, all reports could be tried."""

    async def work(desk: Desk) -> None:
        credential = member(PAPER, 0)
        answer = answer_of(PAPER, credential)
        await desk.intake.submit(packed(PAPER, credential, answer))

        def digests() -> list[bytes]:
            with desk.store._reading() as session:
                return [digest for (digest,) in session.rows("SELECT digest FROM submission")]

        assert len(digests()) == 1 and hashlib.sha256(answer).digest() not in digests()
        desk.store.end(desk.study, Ending("closed"))
        assert digests() == [b""]
        assert len(desk.store.submitted(desk.study)) == 1

    run(tmp_path, PAPER, work)
