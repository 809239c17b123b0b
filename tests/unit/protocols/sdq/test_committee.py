"""The aggregator's part in a joint computation: phases, forwarding, and named parties."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest

from shoal.crypto.secagg.key_agreement import derive_public_key
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Message
from shoal.messages.codec import dump, load
from shoal.protocols.base import EVERYONE, START, Send, WakeAt
from shoal.protocols.mpc.party import JointFrame
from shoal.protocols.mpc.shares import MAX_PAIR_BYTES
from shoal.protocols.sdq.committee import (
    Committee,
    CommitteeState,
    PartyMessage,
    check_contributions,
    committee_context,
    encode_key_statement,
    index_keys,
    seal_scores,
)
from shoal.protocols.sdq.messages import (
    ChoiceResult,
    ComputationFailure,
    Contributions,
    JointKey,
    JointKeys,
    SDQScores,
    UnusableShares,
)
from tests.support.sdq import STUDIES, make

MINUTE = timedelta(minutes=1)
QUERY = bytes([7]) * 32
ROUND = 3
NOW = START
PEERS = make("plus")[1]
TERMS = PEERS["peer-0"].member.sum_params
STUDY = TERMS.study
CONTEXT = TERMS.make_context(ROUND, QUERY)
CHOOSING = Committee(STUDIES["plus"], TERMS, MINUTE)
SELECTING = Committee(STUDIES["selected"], TERMS, MINUTE)


def make_private_key(i: int) -> bytes:
    return bytes([i + 1]) * 32


def make_key(i: int, box: bytes | None = None, number: int = ROUND) -> JointKey:
    box = derive_public_key(make_private_key(i)) if box is None else box
    signature = PEERS[f"peer-{i}"].member.identity.sign(
        encode_key_statement(TERMS.make_context(number, QUERY), i, box)
    )
    return JointKey(study=STUDY, round=number, box=box, signature=signature)


def make_scores(i: int, keys: JointKeys) -> SDQScores:
    identity = PEERS[f"peer-{i}"].member.identity
    boxes = seal_scores(
        np.array([i, 2 * i, 5]),
        committee_context(CONTEXT, keys.keys),
        i,
        identity,
        index_keys(keys),
        5,
        SeededEntropy(i),
    )
    return SDQScores(study=STUDY, round=ROUND, boxes=boxes)


def begin(committee: Committee = CHOOSING, n_candidates: int = 3) -> CommitteeState:
    joint, effects = committee.begin(ROUND, QUERY, n_candidates, NOW)
    assert effects == (WakeAt(NOW + MINUTE),)
    return joint


def take(
    committee: Committee,
    joint: CommitteeState,
    i: int,
    message: PartyMessage,
    later: timedelta = timedelta(0),
) -> tuple[CommitteeState, list[Message], list[str]]:
    """Return the state after a message, saved and loaded again, and the sent messages."""
    joint, effects = committee.handle_message(joint, f"peer-{i}", message, NOW + later)
    sends = [effect for effect in effects if isinstance(effect, Send)]
    assert [effect for effect in effects if not isinstance(effect, Send)] == (
        [WakeAt(joint.deadline)] if sends and later else []
    )
    return (
        load(dump(joint), CommitteeState),
        [send.message for send in sends],
        [send.to for send in sends],
    )


def collect_keys(
    committee: Committee = CHOOSING, n_candidates: int = 3
) -> tuple[CommitteeState, JointKeys]:
    joint, parties = begin(committee, n_candidates), (0, 1, 2) if n_candidates else (0, 1, 2, 3, 4)
    for i in (4, 3, 2, 1):
        joint, sent, _ = take(committee, joint, i, make_key(i))
        assert not sent and joint.phase == "keys"
    joint, (keys,), to = take(committee, joint, 0, make_key(0), MINUTE / 2)
    assert to == [EVERYONE] and isinstance(keys, JointKeys)
    assert tuple(key.party for key in keys.keys) == joint.parties == parties
    assert joint.deadline == NOW + 1.5 * MINUTE
    return joint, keys


def collect_scores(dealers: tuple[int, ...] = (4, 0, 2, 1, 3)) -> CommitteeState:
    joint, keys = collect_keys()
    assert joint.phase == "scores"
    context = committee_context(CONTEXT, keys.keys)
    sent: list[Message] = []
    for i in dealers:
        joint, sent, to = take(
            CHOOSING, joint, i, make_scores(i, keys), MINUTE if i == dealers[-1] else timedelta(0)
        )
    if len(dealers) == 5:
        assert to == ["peer-0", "peer-1", "peer-2"]
    else:
        joint, effects = CHOOSING.handle_tick(joint, joint.deadline)
        sent = [effect.message for effect in effects if isinstance(effect, Send)]
    for party, message in enumerate(sent):
        assert isinstance(message, Contributions)
        public = derive_public_key(make_private_key(party))
        assert check_contributions(message, context, TERMS.roster, party, public, 4) == tuple(
            sorted(dealers)
        )
    assert joint.phase == "computing" and all(not one.boxes for one in joint.dealt)
    return joint


def make_result(position: int, number: int = ROUND) -> ChoiceResult:
    return ChoiceResult(study=STUDY, round=number, position=position)


def make_failure(party: int | None = None) -> ComputationFailure:
    return ComputationFailure(study=STUDY, round=ROUND, party=party)


def catch_code(committee: Committee, joint: CommitteeState, i: int, message: PartyMessage) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        committee.handle_message(joint, f"peer-{i}", message, NOW)
    return caught.value.code


def test_choice_passes_all_phases() -> None:
    joint = collect_scores()
    for i in (2, 0):
        joint, sent, _ = take(CHOOSING, joint, i, make_result(1))
        assert joint.position is None and not sent
    joint, _, _ = take(CHOOSING, joint, 1, make_result(1))
    assert (joint.phase, joint.position, joint.failed) == ("over", 1, None)
    assert len(joint.dealt) == 5


def test_committee_continues_with_enough_scores_at_the_deadline() -> None:
    joint = collect_scores((0, 1, 2, 4))
    assert [one.member for one in joint.dealt] == [0, 1, 2, 4]


def test_committee_fails_with_too_few_scores() -> None:
    joint, keys = collect_keys()
    for i in (0, 1, 2):
        joint, _, _ = take(CHOOSING, joint, i, make_scores(i, keys))
    assert CHOOSING.handle_tick(joint, joint.deadline - timedelta(seconds=1)) == (joint, ())
    joint, effects = CHOOSING.handle_tick(joint, joint.deadline)
    assert joint.phase == "over" and effects == ()
    assert joint.failed is not None and joint.failed.code == "SDQ-004"
    assert "3 databases sent scores in time; 4 are needed" in joint.failed.what
    assert CHOOSING.handle_tick(joint, joint.deadline) == (joint, ())


@pytest.mark.parametrize(
    "there, committee",
    [((4, 3, 1, 0), (0, 1, 3)), ((2, 4, 3), (2, 3, 4)), ((3, 0, 1, 2), (0, 1, 2))],
)
def test_first_keys_at_the_deadline_form_the_committee(
    there: tuple[int, ...], committee: tuple[int, ...]
) -> None:
    joint = begin()
    for i in there:
        joint, sent, _ = take(CHOOSING, joint, i, make_key(i))
        assert not sent
    assert CHOOSING.handle_tick(joint, joint.deadline - timedelta(seconds=1)) == (joint, ())
    joint, (send, wake) = CHOOSING.handle_tick(joint, joint.deadline)
    assert isinstance(send, Send) and isinstance(send.message, JointKeys) and send.to == EVERYONE
    assert (
        tuple(key.party for key in send.message.keys) == joint.parties == committee
        and joint.phase == "scores"
    )
    assert wake == WakeAt(joint.deadline) == WakeAt(NOW + 2 * MINUTE)
    for i in (0, 1, 2, 3):
        joint, _, _ = take(CHOOSING, joint, i, make_scores(i, send.message))
    joint, effects = CHOOSING.handle_tick(joint, joint.deadline)
    assert [effect.to for effect in effects if isinstance(effect, Send)] == [
        f"peer-{i}" for i in committee
    ]
    frame = JointFrame(study=STUDY, round=ROUND, sender=2, to=0, number=0, sealed=b"")
    _, _, to = take(CHOOSING, joint, committee[2], frame)
    assert to == [f"peer-{committee[0]}"]
    (other,) = {0, 1, 2, 3, 4} - {*committee} - {min({0, 1, 2, 3, 4} - {*committee})}
    assert catch_code(CHOOSING, joint, other, make_result(0)) == "SDQ-003"
    for i in committee:
        joint, _, _ = take(CHOOSING, joint, i, make_result(2))
    assert joint.position == 2


def test_scores_for_another_committee_are_rejected() -> None:
    joint = begin()
    for i in (1, 2, 3, 4):
        joint, _, _ = take(CHOOSING, joint, i, make_key(i))
    joint, (send, _) = CHOOSING.handle_tick(joint, joint.deadline)
    assert isinstance(send, Send) and isinstance(send.message, JointKeys)
    _, others = collect_keys()
    assert catch_code(CHOOSING, joint, 4, make_scores(4, others)) == "SDQ-003"
    mixed = make_scores(4, others).boxes[1:] + make_scores(4, send.message).boxes[2:]
    assert (
        catch_code(CHOOSING, joint, 4, make_scores(4, others).replace(boxes=mixed)) == "CRYPTO-001"
    )


def test_round_needs_enough_keys_and_a_result_of_every_party() -> None:
    joint = begin()
    for i in (1, 4):
        joint, _, _ = take(CHOOSING, joint, i, make_key(i))
    joint, _ = CHOOSING.handle_tick(joint, joint.deadline)
    assert (
        joint.failed is not None
        and "2 databases sent keys for a joint computation in time; 3 are needed"
        in joint.failed.what
    )
    joint = begin(SELECTING, 0)
    for i in (0, 1, 2, 4):
        joint, _, _ = take(SELECTING, joint, i, make_key(i))
    joint, _ = SELECTING.handle_tick(joint, joint.deadline)
    assert (
        joint.failed is not None
        and "4 databases sent keys for a joint computation in time; 5 are needed"
        in joint.failed.what
    )
    joint, _, _ = take(CHOOSING, collect_scores(), 1, make_result(0))
    joint, _ = CHOOSING.handle_tick(joint, joint.deadline)
    assert (
        joint.failed is not None
        and "1 databases sent their results in time; 3 are needed" in joint.failed.what
    )


def test_different_results_of_parties_end_the_round() -> None:
    joint = collect_scores()
    for i, position in ((0, 1), (1, 1), (2, 0)):
        joint, _, _ = take(CHOOSING, joint, i, make_result(position))
    assert joint.phase == "over" and joint.position is None
    assert joint.failed is not None and joint.failed.code == "SDQ-003"


def test_unusable_shares_end_the_round_and_name_both_parties() -> None:
    joint = collect_scores((0, 1, 2, 4))
    assert (
        catch_code(CHOOSING, joint, 1, UnusableShares(study=STUDY, round=ROUND, dealer=3))
        == "SDQ-003"
    ), "none of its shares were forwarded"
    assert (
        catch_code(CHOOSING, joint, 4, UnusableShares(study=STUDY, round=ROUND, dealer=0))
        == "SDQ-003"
    ), "it received no shares"
    assert (
        catch_code(
            CHOOSING, collect_keys()[0], 1, UnusableShares(study=STUDY, round=ROUND, dealer=0)
        )
        == "SDQ-003"
    )
    joint, _, _ = take(CHOOSING, joint, 1, UnusableShares(study=STUDY, round=ROUND, dealer=4))
    assert joint.failed is not None
    assert "peer-1" in joint.failed.what and "peer-4" in joint.failed.what


@pytest.mark.parametrize(
    "committee, joint", [(CHOOSING, collect_scores()), (SELECTING, collect_keys(SELECTING, 0)[0])]
)
def test_broken_computation_ends_the_round_and_names_the_parties(
    committee: Committee, joint: CommitteeState
) -> None:
    over, _, _ = take(committee, joint, 1, make_failure())
    assert over.phase == "over" and over.failed is not None and over.failed.code == "SDQ-004"
    assert over.failed.what == "Round 3 failed: the joint computation of peer-1 failed."
    over, _, _ = take(committee, joint, 1, make_failure(2))
    assert over.failed is not None
    assert (
        over.failed.what == "Round 3 failed: the joint computation of peer-1 failed; it reports an "
        "unusable message of peer-2."
    )
    assert "One of the two" in str(over.failed.why)
    for named in (1, 5, 99):
        assert catch_code(committee, joint, 1, make_failure(named)) == "SDQ-003"


def test_only_a_computing_party_can_report_a_failure() -> None:
    assert catch_code(CHOOSING, collect_scores(), 3, make_failure()) == "SDQ-003", "not a party"
    assert catch_code(CHOOSING, collect_scores(), 1, make_failure(3)) == "SDQ-003", (
        "the named database does not compute"
    )
    assert catch_code(CHOOSING, collect_keys()[0], 1, make_failure()) == "SDQ-003"
    assert catch_code(CHOOSING, begin(), 1, make_failure()) == "SDQ-003"


def test_frames_are_forwarded_to_the_named_party() -> None:
    joint = collect_scores()
    frame = JointFrame(study=STUDY, round=ROUND, sender=0, to=2, number=5, sealed=b"sealed")
    again, sent, to = take(CHOOSING, joint, 0, frame)
    assert again == joint.replace(forwarded=(6, 0, 0)) and sent == [frame] and to == ["peer-2"]
    for i, bad in ((1, frame), (0, frame.replace(to=0)), (0, frame.replace(to=3))):
        assert catch_code(CHOOSING, joint, i, bad) == "JOINT-002"
    assert catch_code(CHOOSING, joint, 3, frame) == "SDQ-003", "not a party"
    assert catch_code(CHOOSING, begin(), 0, frame) == "SDQ-003", "too early"


def test_frames_of_party_are_limited_in_bytes() -> None:
    """What is forwarded waits at the coordinator, and then at the recipient."""
    joint, frame = (
        collect_scores(),
        JointFrame(study=STUDY, round=ROUND, sender=0, to=2, number=5, sealed=b"sealed"),
    )
    most = MAX_PAIR_BYTES * (len(joint.parties) - 1)
    nearly = joint.replace(forwarded=(most - 6, 0, 0))
    full, sent, _ = take(CHOOSING, nearly, 0, frame)
    assert sent == [frame] and full.forwarded == (most, 0, 0)
    assert catch_code(CHOOSING, full, 0, frame) == "JOINT-002"
    _, sent, _ = take(CHOOSING, full, 1, frame.replace(sender=1))
    assert len(sent) == 1, "the others are not affected"


def test_selection_computes_when_all_keys_have_arrived() -> None:
    joint, _ = collect_keys(SELECTING, 0)
    assert joint.phase == "computing" and not joint.is_choice
    frame = JointFrame(study=STUDY, round=ROUND, sender=4, to=3, number=0, sealed=b"")
    _, sent, to = take(SELECTING, joint, 4, frame)
    assert sent == [frame] and to == ["peer-3"]
    assert catch_code(SELECTING, joint, 0, make_result(0)) == "SDQ-003", "nothing is chosen"


def test_late_messages_are_dropped_and_early_or_repeated_ones_rejected() -> None:
    joint, keys = collect_keys()
    assert catch_code(CHOOSING, begin(), 0, make_scores(0, keys)) == "SDQ-003"
    assert take(CHOOSING, joint, 3, make_key(3)) == (joint, [], [])
    assert catch_code(CHOOSING, joint, 0, make_result(0)) == "SDQ-003"
    once, _, _ = take(CHOOSING, begin(), 1, make_key(1))
    assert catch_code(CHOOSING, once, 1, make_key(1)) == "SDQ-003"
    dealt, _, _ = take(CHOOSING, joint, 3, make_scores(3, keys))
    assert catch_code(CHOOSING, dealt, 3, make_scores(3, keys)) == "SDQ-003"
    late = collect_scores((0, 1, 2, 4))
    assert take(CHOOSING, late, 3, make_scores(3, keys)) == (late, [], [])
    said, _, _ = take(CHOOSING, late, 1, make_result(1))
    assert catch_code(CHOOSING, said, 1, make_result(1)) == "SDQ-003"
    assert catch_code(CHOOSING, late, 1, make_result(3)) == "SDQ-003", "there are three candidates"
    over = late.replace(phase="over", position=1)
    for message in (
        make_key(1),
        make_scores(3, keys),
        make_result(1),
        UnusableShares(study=STUDY, round=ROUND, dealer=1),
        make_failure(),
    ):
        assert take(CHOOSING, over, 1, message) == (over, [], [])
    with pytest.raises(RemoteProtocolError, match="not on the roster"):
        CHOOSING.handle_message(joint, "stranger", make_result(0), NOW)


def test_keys_and_scores_with_invalid_signatures_are_rejected() -> None:
    joint, keys = collect_keys()
    assert catch_code(CHOOSING, begin(), 0, make_key(1)) == "CRYPTO-001"
    assert (
        catch_code(
            CHOOSING, begin(), 0, make_key(0).replace(signature=make_key(0, number=4).signature)
        )
        == "CRYPTO-001"
    )
    assert catch_code(CHOOSING, begin(), 0, make_key(0, bytes(32))) == "CRYPTO-001", (
        "with this key all parties agree on the same secret"
    )
    good = make_scores(3, keys)
    assert catch_code(CHOOSING, joint, 4, good) == "CRYPTO-001"
    assert catch_code(CHOOSING, joint, 3, good.replace(boxes=good.boxes[:2])) == "SDQ-003"
    assert catch_code(CHOOSING, joint, 3, good.replace(boxes=good.boxes[::-1])) == "SDQ-003"
    first, second, third = good.boxes
    moved = (first, second.replace(box=third.box, signature=third.signature), third)
    assert catch_code(CHOOSING, joint, 3, good.replace(boxes=moved)) == "CRYPTO-001"
