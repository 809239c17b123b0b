"""Frames reach the other party's computation in order, once, and only unchanged."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from itertools import permutations
from typing import Any

import pytest

from shoal.crypto.secagg.context import MemberPublicKeys, RoundContext
from shoal.crypto.secagg.key_agreement import derive_public_key
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Message
from shoal.messages.codec import dump, load
from shoal.protocols.base import (
    Broken,
    ComputationInput,
    Compute,
    Effects,
    Emitted,
    Feed,
    Send,
    run_local,
)
from shoal.protocols.mpc import party
from shoal.protocols.mpc.party import (
    MAX_AHEAD,
    MAX_PAIR_BYTES,
    MAX_SEALED,
    ComputationParameters,
    JointFrame,
    PartyState,
    begin,
    find_recipient,
    handle_frame,
    leave,
    send_frame,
)
from shoal.simulation.network import run_network
from tests.support.toy import joint

STUDY = bytes(range(32))
PRIVATE = {member: bytes([member]) * 32 for member in (3, 5, 9)}
KEYS = {
    member: MemberPublicKeys(bytes(32), derive_public_key(private), bytes(32))
    for member, private in PRIVATE.items()
}
TERMS = ComputationParameters(
    RoundContext(STUDY, bytes(32), 1, bytes(32)), "argmax", (3, 5, 9), (1, 2, 3)
)
TASK = "joint/1"


def seated(
    member: int, terms: ComputationParameters = TERMS, seat: PartyState | None = None
) -> tuple[PartyState, Effects]:
    return begin(seat or PartyState(round=1), terms, member, PRIVATE[member], KEYS, (member,))


def frames(member: int, to: int, n: int, terms: ComputationParameters = TERMS) -> list[JointFrame]:
    """What a party has for another one."""
    seat, _ = seated(member, terms)
    sent = []
    for number in range(n):
        seat, (send,) = send_frame(seat, Emitted(TASK, to, f"{member} {number}".encode()), STUDY)
        assert isinstance(send, Send)
        sent.append(send.message)
    return sent


def refused(seat: PartyState, message: JointFrame) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        handle_frame(seat, message)
    assert caught.value.code == "JOINT-002"
    assert f"party {message.sender}" in caught.value.what
    return caught.value.what


def test_begin_requests_computation_with_own_number_and_shares() -> None:
    seat, effects = seated(5)
    assert effects == (Compute(TASK, "argmax", 1, 3, (5,)),)
    assert [link is None for link in seat.links] == [False, True, False]


def test_handle_frame_feeds_frames_in_order_of_emission() -> None:
    sent = frames(3, 2, 3)
    for order in permutations((0, 1, 2, 1)):
        seat, fed = seated(9)[0], []
        for number in order:
            seat, effects = handle_frame(load(dump(seat), PartyState), sent[number])
            fed += effects
        assert fed == [Feed(TASK, 0, f"3 {number}".encode()) for number in range(3)]
        assert seat.early == ()


def test_handle_frame_orders_each_sender_separately() -> None:
    seat, _ = seated(9)
    seat, none = handle_frame(seat, frames(3, 2, 2)[1])
    seat, effects = handle_frame(seat, frames(5, 2, 1)[0])
    assert (none, effects) == ((), (Feed(TASK, 1, b"5 0"),))
    assert [early.sender for early in seat.early] == [0]


def test_begin_feeds_early_frames_and_drops_unopenable_ones() -> None:
    first, second = frames(3, 2, 2)
    seat = PartyState(round=1)
    for message in (second, first.replace(sealed=bytes(20)), first.replace(sender=8), first):
        seat, effects = handle_frame(seat, message)
        assert effects == ()
    seat, effects = seated(9, seat=load(dump(seat), PartyState))
    assert effects == (
        Compute(TASK, "argmax", 2, 3, (9,)),
        Feed(TASK, 0, b"3 0"),
        Feed(TASK, 0, b"3 1"),
    )
    assert (seat.unopened, seat.early) == ((), ())


def test_handle_frame_limits_waiting_frames() -> None:
    message = frames(3, 2, 1)[0]
    seat = PartyState(round=1, unopened=(message,) * MAX_AHEAD)
    assert "exceeds the limit" in refused(seat, message)
    seat, _ = seated(9)
    sent = frames(3, 2, MAX_AHEAD + 1)
    assert "ahead" in refused(seat, sent[MAX_AHEAD])
    assert handle_frame(seat, sent[MAX_AHEAD - 1])[1] == ()


def large_frames(member: int, to: int, n: int, size: int) -> list[JointFrame]:
    """Return frames that open, each with a payload of this size."""
    seat, _ = seated(member)
    sent = []
    for _ in range(n):
        seat, (send,) = send_frame(seat, Emitted(TASK, to, bytes(size)), STUDY)
        assert isinstance(send, Send)
        sent.append(send.message)
    return sent


def test_handle_frame_limits_bytes_of_sender() -> None:
    """A party that sends without end fills neither the state of another nor its computation."""
    size = 1 << 22
    sent = large_frames(3, 2, MAX_PAIR_BYTES // size + 1, size)
    for order in (sent, [*sent[1:], sent[0]]):
        seat, n_fed = seated(9)[0], 0
        for message in order[: MAX_PAIR_BYTES // size - 1]:
            seat, effects = handle_frame(seat, message)
            n_fed += len(effects)
        assert sum(len(early.payload) for early in seat.early) <= MAX_PAIR_BYTES
        assert "bytes of its sender" in refused(load(dump(seat), PartyState), order[-2])
        # The other parties are not affected.
        assert handle_frame(seat, frames(5, 2, 1)[0])[1] == (Feed(TASK, 1, b"5 0"),)


def test_handle_frame_limits_bytes_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(party, "MAX_WAITING_BYTES", 2_500)
    seat, _ = handle_frame(seated(9)[0], large_frames(3, 2, 2, 1_000)[1])
    later = large_frames(5, 2, 3, 1_000)
    seat, _ = handle_frame(seat, later[1])
    assert "frames that wait" in refused(seat, later[2])
    seat = PartyState(round=1)
    for message in later[:2]:
        seat, _ = handle_frame(seat, message)
    assert "before the beginning" in refused(seat, later[2])


def test_handle_frame_rejects_every_flipped_bit() -> None:
    seat, _ = seated(9)
    message = frames(3, 2, 1)[0]
    for place in range(8 * len(message.sealed)):
        sealed = bytearray(message.sealed)
        sealed[place // 8] ^= 1 << place % 8
        assert "does not open" in refused(seat, message.replace(sealed=bytes(sealed)))
    assert handle_frame(seat, message)[1] == (Feed(TASK, 0, b"3 0"),)


def test_handle_frame_rejects_changed_number_sender_or_recipient() -> None:
    seat, _ = seated(9)
    first, second = frames(3, 2, 2)
    assert "does not open" in refused(seat, second.replace(number=0))
    assert "does not open" in refused(seat, first.replace(sender=1))
    assert "does not open" in refused(seat, frames(3, 1, 1)[0].replace(to=2))
    for wrong in (first.replace(to=1), first.replace(sender=2), first.replace(sender=3)):
        assert "not from another party to this one" in refused(seat, wrong)


def test_handle_frame_drops_replay_and_rejects_it_in_other_round() -> None:
    seat, _ = seated(9)
    message = frames(3, 2, 1)[0]
    seat, _ = handle_frame(seat, message)
    assert handle_frame(seat, message) == (seat, ())
    later = replace(TERMS, context=replace(TERMS.context, round=2))
    seat, _ = seated(9, later, PartyState(round=2))
    assert handle_frame(seat, message) == (seat, ())
    assert "does not open" in refused(seat, message.replace(round=2))
    assert "has not begun" in refused(seat, message.replace(round=3))


@pytest.mark.parametrize(
    "other",
    [
        replace(TERMS, contributors=(1, 2)),
        replace(TERMS, contributors=(1, 2, 4)),
        replace(TERMS, parties=(3, 5, 9, 1), contributors=(2, 3)),
        replace(TERMS, program="select"),
        *(
            replace(TERMS, context=replace(TERMS.context, **{name: b"\x01" * 32}))
            for name in ("study", "roster", "query")
        ),
    ],
)
def test_parties_with_different_parameters_cannot_open_frames(other: ComputationParameters) -> None:
    keys = {**KEYS, 1: KEYS[9]}
    theirs, _ = begin(PartyState(round=1), other, 3, PRIVATE[3], keys, ())
    _, (send,) = send_frame(theirs, Emitted(TASK, 2, b"x"), STUDY)
    assert isinstance(send, Send)
    assert "does not open" in refused(seated(9)[0], send.message)


def test_leave_erases_keys_and_ignores_later_frames() -> None:
    seat = leave(seated(9)[0])
    assert seat == PartyState(round=1, me=2, is_over=True)
    assert handle_frame(seat, frames(3, 2, 1)[0]) == (seat, ())
    assert send_frame(seat, Emitted(TASK, 0, b"x"), STUDY) == (seat, ())


def test_send_frame_ignores_payload_of_other_computation() -> None:
    seat, _ = seated(9)
    assert send_frame(seat, Emitted("joint/0", 0, b"x"), STUDY) == (seat, ())
    assert send_frame(seat, Emitted(TASK, 2, b"x"), STUDY) == (seat, ())


def test_send_frame_uses_each_counter_once() -> None:
    sent = frames(3, 2, 3)
    assert [message.number for message in sent] == [0, 1, 2]
    assert len({message.submission for message in (*sent, *frames(3, 1, 3))}) == 6
    assert all(b"3 " not in message.sealed for message in sent)


def test_send_frame_rejects_oversized_payload() -> None:
    seat, _ = seated(9)
    send_frame(seat, Emitted(TASK, 0, bytes(MAX_SEALED - 16)), STUDY)
    with pytest.raises(LocalProtocolError):
        send_frame(seat, Emitted(TASK, 0, bytes(MAX_SEALED)), STUDY)


def test_find_recipient_accepts_frame_of_its_sender_only() -> None:
    message = frames(3, 2, 1)[0]
    assert find_recipient(message, 0, 3) == 2
    for wrong, sender in ((message, 1), (message.replace(to=0), 0), (message.replace(to=3), 0)):
        with pytest.raises(RemoteProtocolError) as caught:
            find_recipient(wrong, sender, 3)
        assert caught.value.code == "JOINT-002"


@pytest.mark.parametrize("drive", [run_local, run_network])
def test_parties_finish_with_chatting_computation(drive: Any) -> None:
    outcome = drive(
        *joint.make(joint.Study("argmax", 4), [1, 2]), SeededEntropy(1), computer=joint.Chatter(5)
    )
    assert outcome.results == {f"peer-{i}": (0,) for i in range(4)}
    assert not (outcome.rejected or outcome.failed or outcome.aborted)


class Meddling(joint.JointAggregator):
    """Passes each frame on, but first something else."""

    def __init__(self, study: joint.Study, change: Any) -> None:
        super().__init__(study)
        self.change = change

    def forward(self, message: JointFrame, party: int) -> Effects:
        (send,) = super().forward(message, party)
        assert isinstance(send, Send)
        return (Send(send.to, self.change(message)), send)


@pytest.mark.parametrize(
    "change",
    [
        lambda message: message.replace(
            sealed=message.sealed[:-1] + bytes([message.sealed[-1] ^ 1])
        ),
        lambda message: message.replace(number=message.number + 1),
        lambda message: message.replace(sender=3 - message.sender - message.to),
        lambda message: message.replace(round=message.round + 1),
    ],
)
def test_meddling_aggregator_is_blamed_and_changes_nothing(change: Any) -> None:
    study = joint.Study("argmax", 3)
    _, peers = joint.make(study, [1, 2])
    outcome = run_local(Meddling(study, change), peers, SeededEntropy(1), computer=joint.Chatter())
    assert outcome.results == {f"peer-{i}": (0,) for i in range(3)}
    assert {(rejected.sender, rejected.error.code) for rejected in outcome.rejected} == {
        ("aggregator", "JOINT-002")
    }
    assert len(outcome.rejected) >= 9, "of 18; one that seems to be past is dropped"


def test_aborted_peer_leaves_all_computations() -> None:
    class Faint(joint.JointPeer):
        def on_computation(
            self, state: joint.Sitting, given: ComputationInput, now: datetime, entropy: Entropy
        ) -> tuple[joint.Sitting, Effects]:
            return super().on_computation(
                state, Broken(given.task, LocalProtocolError("JOINT-001", "Faint.")), now, entropy
            )

    study = joint.Study("argmax", 3)
    aggregator, peers = joint.make(study, [1, 2])
    for drive in (run_local, run_network):
        computer = joint.Chatter()
        outcome = drive(
            aggregator,
            {**peers, "peer-0": Faint(study, 0, (1, 2))},
            SeededEntropy(1),
            computer=computer,
        )
        assert set(outcome.aborted) == {"peer-0"}
        assert set(computer.heard) == {"peer-1", "peer-2"}
        assert not outcome.results


def test_peer_that_forges_frame_is_blamed() -> None:
    class Forger(joint.JointPeer):
        def on_message(
            self, state: joint.Sitting, message: Message, now: datetime, entropy: Entropy
        ) -> tuple[joint.Sitting, Effects]:
            state, effects = super().on_message(state, message, now, entropy)
            forged = JointFrame(
                study=self.study, round=joint.ROUND, sender=1, to=2, number=0, sealed=bytes(20)
            )
            return state, (*effects, Send("aggregator", forged))

    study = joint.Study("argmax", 3)
    aggregator, peers = joint.make(study, [1, 2])
    outcome = run_local(
        aggregator,
        {**peers, "peer-0": Forger(study, 0, (1, 2))},
        SeededEntropy(1),
        computer=joint.Chatter(),
    )
    assert {(rejected.by, rejected.sender) for rejected in outcome.rejected} == {
        ("aggregator", "peer-0")
    }
    assert len(outcome.results) == 3
