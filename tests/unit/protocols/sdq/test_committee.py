"""A joint computation as the aggregator sees it: what it waits for in each phase, what it passes on, and whom it blames."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from sdq_cases import STUDIES, make
from shoal.crypto.masks import public_of
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Message
from shoal.messages.codec import dump, load
from shoal.protocols.base import EVERYONE, START, Send, WakeAt
from shoal.protocols.joint.messages import JointFrame
from shoal.protocols.sdq.committee import Committee, FromParty, Joint
from shoal.protocols.sdq.joining import check_contributions, key_statement, keys_of, seal_scores, seated
from shoal.protocols.sdq.messages import BrokenOff, Contributions, JointKey, JointKeys, Scores, Settled, Unusable

MINUTE = timedelta(minutes=1)
QUERY = bytes([7]) * 32
ROUND = 3
NOW = START
PEERS = make("plus")[1]
TERMS = PEERS["peer-0"].member.terms
STUDY = TERMS.study
CONTEXT = TERMS.context(ROUND, QUERY)
CHOOSING = Committee(STUDIES["plus"], TERMS, MINUTE)
SELECTING = Committee(STUDIES["selected"], TERMS, MINUTE)


def private(i: int) -> bytes:
    return bytes([i + 1]) * 32


def a_key(i: int, box: bytes | None = None, number: int = ROUND) -> JointKey:
    box = public_of(private(i)) if box is None else box
    signature = PEERS[f"peer-{i}"].member.identity.sign(key_statement(TERMS.context(number, QUERY), i, box))
    return JointKey(study=STUDY, round=number, box=box, signature=signature)


def scores(i: int, keys: JointKeys) -> Scores:
    identity = PEERS[f"peer-{i}"].member.identity
    boxes = seal_scores(np.array([i, 2 * i, 5]), seated(CONTEXT, keys.keys), i, identity, keys_of(keys), 5, SeededEntropy(i))
    return Scores(study=STUDY, round=ROUND, boxes=boxes)


def begin(committee: Committee = CHOOSING, n_candidates: int = 3) -> Joint:
    joint, effects = committee.begin(ROUND, QUERY, n_candidates, NOW)
    assert effects == (WakeAt(NOW + MINUTE),)
    return joint


def take(
    committee: Committee, joint: Joint, i: int, message: FromParty, later: timedelta = timedelta(0)
) -> tuple[Joint, list[Message], list[str]]:
    """The joint computation after a message, by way of what is saved; and what is sent to whom."""
    joint, effects = committee.received(joint, f"peer-{i}", message, NOW + later)
    sends = [effect for effect in effects if isinstance(effect, Send)]
    assert [effect for effect in effects if not isinstance(effect, Send)] == ([WakeAt(joint.deadline)] if sends and later else [])
    return load(dump(joint), Joint), [send.message for send in sends], [send.to for send in sends]


def keyed(committee: Committee = CHOOSING, n_candidates: int = 3) -> tuple[Joint, JointKeys]:
    joint, parties = begin(committee, n_candidates), (0, 1, 2) if n_candidates else (0, 1, 2, 3, 4)
    for i in (4, 3, 2, 1):
        joint, sent, _ = take(committee, joint, i, a_key(i))
        assert not sent and joint.phase == "keys"
    joint, (keys,), to = take(committee, joint, 0, a_key(0), MINUTE / 2)
    assert to == [EVERYONE] and isinstance(keys, JointKeys)
    assert tuple(key.party for key in keys.keys) == joint.parties == parties
    assert joint.deadline == NOW + 1.5 * MINUTE
    return joint, keys


def computing(dealers: tuple[int, ...] = (4, 0, 2, 1, 3)) -> Joint:
    joint, keys = keyed()
    assert joint.phase == "scores"
    context = seated(CONTEXT, keys.keys)
    sent: list[Message] = []
    for i in dealers:
        joint, sent, to = take(CHOOSING, joint, i, scores(i, keys), MINUTE if i == dealers[-1] else timedelta(0))
    if len(dealers) == 5:
        assert to == ["peer-0", "peer-1", "peer-2"]
    else:
        joint, effects = CHOOSING.ticked(joint, joint.deadline)
        sent = [effect.message for effect in effects if isinstance(effect, Send)]
    for party, message in enumerate(sent):
        assert isinstance(message, Contributions)
        public = public_of(private(party))
        assert check_contributions(message, context, TERMS.roster, party, public, 4) == tuple(sorted(dealers))
    assert joint.phase == "computing" and all(not one.boxes for one in joint.dealt)
    return joint


def settled(position: int, number: int = ROUND) -> Settled:
    return Settled(study=STUDY, round=number, position=position)


def broken_off(party: int | None = None) -> BrokenOff:
    return BrokenOff(study=STUDY, round=ROUND, party=party)


def refused(committee: Committee, joint: Joint, i: int, message: FromParty) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        committee.received(joint, f"peer-{i}", message, NOW)
    return caught.value.code


def test_a_choice_goes_through_all_phases() -> None:
    joint = computing()
    for i in (2, 0):
        joint, sent, _ = take(CHOOSING, joint, i, settled(1))
        assert joint.position is None and not sent
    joint, _, _ = take(CHOOSING, joint, 1, settled(1))
    assert (joint.phase, joint.position, joint.failed) == ("over", 1, None)
    assert len(joint.dealt) == 5


def test_scores_of_enough_databases_do_when_the_time_is_up() -> None:
    joint = computing((0, 1, 2, 4))
    assert [one.member for one in joint.dealt] == [0, 1, 2, 4]


def test_scores_of_too_few_do_not() -> None:
    joint, keys = keyed()
    for i in (0, 1, 2):
        joint, _, _ = take(CHOOSING, joint, i, scores(i, keys))
    assert CHOOSING.ticked(joint, joint.deadline - timedelta(seconds=1)) == (joint, ())
    joint, effects = CHOOSING.ticked(joint, joint.deadline)
    assert joint.phase == "over" and effects == ()
    assert joint.failed is not None and joint.failed.code == "SDQ-004"
    assert "3 databases sent scores in time; 4 are needed" in joint.failed.what
    assert CHOOSING.ticked(joint, joint.deadline) == (joint, ())


@pytest.mark.parametrize("there, committee", [((4, 3, 1, 0), (0, 1, 3)), ((2, 4, 3), (2, 3, 4)), ((3, 0, 1, 2), (0, 1, 2))])
def test_the_first_that_are_there_when_the_time_is_up_make_the_committee(there: tuple[int, ...], committee: tuple[int, ...]) -> None:
    joint = begin()
    for i in there:
        joint, sent, _ = take(CHOOSING, joint, i, a_key(i))
        assert not sent
    assert CHOOSING.ticked(joint, joint.deadline - timedelta(seconds=1)) == (joint, ())
    joint, (send, wake) = CHOOSING.ticked(joint, joint.deadline)
    assert isinstance(send, Send) and isinstance(send.message, JointKeys) and send.to == EVERYONE
    assert tuple(key.party for key in send.message.keys) == joint.parties == committee and joint.phase == "scores"
    assert wake == WakeAt(joint.deadline) == WakeAt(NOW + 2 * MINUTE)
    for i in (0, 1, 2, 3):
        joint, _, _ = take(CHOOSING, joint, i, scores(i, send.message))
    joint, effects = CHOOSING.ticked(joint, joint.deadline)
    assert [effect.to for effect in effects if isinstance(effect, Send)] == [f"peer-{i}" for i in committee]
    frame = JointFrame(study=STUDY, round=ROUND, sender=2, to=0, number=0, sealed=b"")
    _, _, to = take(CHOOSING, joint, committee[2], frame)
    assert to == [f"peer-{committee[0]}"]
    (other,) = {0, 1, 2, 3, 4} - {*committee} - {min({0, 1, 2, 3, 4} - {*committee})}
    assert refused(CHOOSING, joint, other, settled(0)) == "SDQ-003"
    for i in committee:
        joint, _, _ = take(CHOOSING, joint, i, settled(2))
    assert joint.position == 2


def test_scores_that_were_dealt_to_another_committee_are_refused() -> None:
    joint = begin()
    for i in (1, 2, 3, 4):
        joint, _, _ = take(CHOOSING, joint, i, a_key(i))
    joint, (send, _) = CHOOSING.ticked(joint, joint.deadline)
    assert isinstance(send, Send) and isinstance(send.message, JointKeys)
    _, others = keyed()
    assert refused(CHOOSING, joint, 4, scores(4, others)) == "SDQ-003"
    mixed = scores(4, others).boxes[1:] + scores(4, send.message).boxes[2:]
    assert refused(CHOOSING, joint, 4, scores(4, others).replace(boxes=mixed)) == "CRYPTO-001"


def test_enough_must_publish_a_key_and_every_party_say_what_it_chose() -> None:
    joint = begin()
    for i in (1, 4):
        joint, _, _ = take(CHOOSING, joint, i, a_key(i))
    joint, _ = CHOOSING.ticked(joint, joint.deadline)
    assert joint.failed is not None and "2 databases sent keys for a joint computation in time; 3 are needed" in joint.failed.what
    joint = begin(SELECTING, 0)
    for i in (0, 1, 2, 4):
        joint, _, _ = take(SELECTING, joint, i, a_key(i))
    joint, _ = SELECTING.ticked(joint, joint.deadline)
    assert joint.failed is not None and "4 databases sent keys for a joint computation in time; 5 are needed" in joint.failed.what
    joint, _, _ = take(CHOOSING, computing(), 1, settled(0))
    joint, _ = CHOOSING.ticked(joint, joint.deadline)
    assert joint.failed is not None and "1 databases sent what they chose in time; 3 are needed" in joint.failed.what


def test_parties_that_say_different_things_end_the_round() -> None:
    joint = computing()
    for i, position in ((0, 1), (1, 1), (2, 0)):
        joint, _, _ = take(CHOOSING, joint, i, settled(position))
    assert joint.phase == "over" and joint.position is None
    assert joint.failed is not None and joint.failed.code == "SDQ-003"


def test_a_party_that_cannot_use_what_it_was_dealt_ends_the_round_and_both_are_named() -> None:
    joint = computing((0, 1, 2, 4))
    assert refused(CHOOSING, joint, 1, Unusable(study=STUDY, round=ROUND, dealer=3)) == "SDQ-003", "nothing of it was passed on"
    assert refused(CHOOSING, joint, 4, Unusable(study=STUDY, round=ROUND, dealer=0)) == "SDQ-003", "it was dealt nothing"
    assert refused(CHOOSING, keyed()[0], 1, Unusable(study=STUDY, round=ROUND, dealer=0)) == "SDQ-003"
    joint, _, _ = take(CHOOSING, joint, 1, Unusable(study=STUDY, round=ROUND, dealer=4))
    assert joint.failed is not None
    assert "peer-1" in joint.failed.what and "peer-4" in joint.failed.what


@pytest.mark.parametrize("committee, joint", [(CHOOSING, computing()), (SELECTING, keyed(SELECTING, 0)[0])])
def test_a_computation_that_broke_ends_the_round_and_its_party_is_named_with_whom_it_names(committee: Committee, joint: Joint) -> None:
    over, _, _ = take(committee, joint, 1, broken_off())
    assert over.phase == "over" and over.failed is not None and over.failed.code == "SDQ-004"
    assert over.failed.what == "Round 3 is given up: the joint computation of peer-1 broke off."
    over, _, _ = take(committee, joint, 1, broken_off(2))
    assert over.failed is not None
    assert over.failed.what == "Round 3 is given up: the joint computation of peer-1 broke off, by what peer-2 sent, it says."
    assert "One of the two" in str(over.failed.why)
    for named in (1, 5, 99):
        assert refused(committee, joint, 1, broken_off(named)) == "SDQ-003"


def test_only_a_party_can_say_that_its_computation_broke_and_only_during_it() -> None:
    assert refused(CHOOSING, computing(), 3, broken_off()) == "SDQ-003", "not a party"
    assert refused(CHOOSING, computing(), 1, broken_off(3)) == "SDQ-003", "names nobody who computes"
    assert refused(CHOOSING, keyed()[0], 1, broken_off()) == "SDQ-003"
    assert refused(CHOOSING, begin(), 1, broken_off()) == "SDQ-003"


def test_frames_are_passed_on_to_the_party_that_they_name() -> None:
    joint = computing()
    frame = JointFrame(study=STUDY, round=ROUND, sender=0, to=2, number=5, sealed=b"sealed")
    again, sent, to = take(CHOOSING, joint, 0, frame)
    assert again == joint and sent == [frame] and to == ["peer-2"]
    for i, bad in ((1, frame), (0, frame.replace(to=0)), (0, frame.replace(to=3))):
        assert refused(CHOOSING, joint, i, bad) == "JOINT-002"
    assert refused(CHOOSING, joint, 3, frame) == "SDQ-003", "not a party"
    assert refused(CHOOSING, begin(), 0, frame) == "SDQ-003", "too early"


def test_a_selection_computes_once_all_keys_are_there() -> None:
    joint, _ = keyed(SELECTING, 0)
    assert joint.phase == "computing" and not joint.is_choice
    frame = JointFrame(study=STUDY, round=ROUND, sender=4, to=3, number=0, sealed=b"")
    _, sent, to = take(SELECTING, joint, 4, frame)
    assert sent == [frame] and to == ["peer-3"]
    assert refused(SELECTING, joint, 0, settled(0)) == "SDQ-003", "nothing is chosen"


def test_what_is_late_is_dropped_and_what_is_early_or_twice_is_refused() -> None:
    joint, keys = keyed()
    assert refused(CHOOSING, begin(), 0, scores(0, keys)) == "SDQ-003"
    assert take(CHOOSING, joint, 3, a_key(3)) == (joint, [], [])
    assert refused(CHOOSING, joint, 0, settled(0)) == "SDQ-003"
    once, _, _ = take(CHOOSING, begin(), 1, a_key(1))
    assert refused(CHOOSING, once, 1, a_key(1)) == "SDQ-003"
    dealt, _, _ = take(CHOOSING, joint, 3, scores(3, keys))
    assert refused(CHOOSING, dealt, 3, scores(3, keys)) == "SDQ-003"
    late = computing((0, 1, 2, 4))
    assert take(CHOOSING, late, 3, scores(3, keys)) == (late, [], [])
    said, _, _ = take(CHOOSING, late, 1, settled(1))
    assert refused(CHOOSING, said, 1, settled(1)) == "SDQ-003"
    assert refused(CHOOSING, late, 1, settled(3)) == "SDQ-003", "there are three candidates"
    over = late.replace(phase="over", position=1)
    for message in (a_key(1), scores(3, keys), settled(1), Unusable(study=STUDY, round=ROUND, dealer=1), broken_off()):
        assert take(CHOOSING, over, 1, message) == (over, [], [])
    with pytest.raises(RemoteProtocolError, match="not on the roster"):
        CHOOSING.received(joint, "stranger", settled(0), NOW)


def test_keys_and_scores_that_their_sender_did_not_sign_are_refused() -> None:
    joint, keys = keyed()
    assert refused(CHOOSING, begin(), 0, a_key(1)) == "CRYPTO-001"
    assert refused(CHOOSING, begin(), 0, a_key(0).replace(signature=a_key(0, number=4).signature)) == "CRYPTO-001"
    assert refused(CHOOSING, begin(), 0, a_key(0, bytes(32))) == "CRYPTO-001", "a key with which everyone agrees on the same"
    good = scores(3, keys)
    assert refused(CHOOSING, joint, 4, good) == "CRYPTO-001"
    assert refused(CHOOSING, joint, 3, good.replace(boxes=good.boxes[:2])) == "SDQ-003"
    assert refused(CHOOSING, joint, 3, good.replace(boxes=good.boxes[::-1])) == "SDQ-003"
    first, second, third = good.boxes
    moved = (first, second.replace(box=third.box, signature=third.signature), third)
    assert refused(CHOOSING, joint, 3, good.replace(boxes=moved)) == "CRYPTO-001"
