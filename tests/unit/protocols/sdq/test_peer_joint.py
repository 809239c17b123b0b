"""The SDQ peer in joint computations: selections, keys, committees, and frames."""

from __future__ import annotations

import pytest

from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.protocols.base import Broken, Compute, Computed, Emitted, Feed, MemoryLedger
from shoal.protocols.mpc.party import JointFrame
from shoal.protocols.sdq.committee import (
    _encode_box_statement,
    committee_context,
    compute_ask_digest,
    encode_key_statement,
    index_keys,
)
from shoal.protocols.sdq.messages import (
    ChoiceResult,
    ComputationFailure,
    Contributions,
    JointKey,
    JointKeys,
    SDQAsk,
    SDQScores,
    UnusableShares,
)
from shoal.protocols.sdq.script import SDQScriptState
from shoal.protocols.secagg.messages import SumBoxes, SumKeys
from tests.support.machines import before, give
from tests.support.sdq import QUERIES, logged
from tests.unit.protocols.sdq.peers import catch_code, get_peer, make_ask

# Selection.


def test_selection_runs_once_for_each_level() -> None:
    """Otherwise colluders could repeat it until two are selected, and learn exact sums."""
    peer, ledger = get_peer("selected"), MemoryLedger()
    state, sent, _ = give(peer, peer.initial_state(), make_ask(peer), ledger)
    assert [type(message) for message in sent] == [JointKey] and state.selected == ("sizes/0",)
    assert catch_code(peer, state, make_ask(peer, 1), ledger) == "SDQ-003"
    state, computed = before(peer, Computed)
    state, sent, _ = give(peer, state, computed, ledger)
    assert [type(message) for message in sent] == [SumKeys] and state.role is not None
    assert catch_code(peer, state, make_ask(peer, 1), ledger) == "SDQ-003"
    state, sent, _ = give(peer, state, make_ask(peer, 1, query=QUERIES[0]), ledger)
    assert (
        [type(message) for message in sent] == [JointKey]
        and state.selected == ("sizes/0", "query/0")
        and state.role is None
    )
    assert catch_code(peer, state, make_ask(peer, 2), ledger) == "SDQ-003"
    assert not ledger.entries


def test_answers_of_a_level_need_its_selection() -> None:
    peer, ledger = get_peer("selected"), MemoryLedger()
    first, deeper = (
        SDQScriptState(step=1, leaves=(False,)),
        SDQScriptState(step=3, choices=(0,), leaves=(True,) * 3),
    )
    state, sent, _ = give(peer, peer.initial_state(), make_ask(peer, 0, first), ledger)
    assert sent == [], "nothing was selected"
    state, ask = before(peer, SDQAsk, 1)
    assert state.role is not None
    kept, sent, _ = give(peer, state, ask, ledger)
    assert [type(message) for message in sent] == [SumKeys] and kept.role == state.role
    lost, sent, _ = give(peer, state, make_ask(peer, 1, deeper), ledger)
    assert sent == [] and lost.role is None, "the role of another level is erased"
    assert not ledger.entries


def test_role_is_erased_after_the_answers() -> None:
    peer = get_peer("selected")
    state, boxes = before(peer, SumBoxes)
    after, _, _ = give(peer, state, boxes)
    assert after.role == state.role is not None, "its answers will follow"
    state, boxes = before(peer, SumBoxes, 1)
    assert state.role is not None and state.asked_for.course.leaves
    after, _, _ = give(peer, state, boxes)
    assert after.role is None


def test_roles_make_the_noise_of_a_sum() -> None:
    roles = []
    for peer in logged("selected")[1].values():
        state, _ = before(peer, SumBoxes)
        roles.append(state.role)
    assert sorted(roles) == [0, 0, 0, 1, 2]


def test_broken_or_left_selection_begins_no_sum() -> None:
    peer, ledger = get_peer("selected"), MemoryLedger()
    state, computed = before(peer, Computed)
    broken, sent, _ = give(
        peer, state, Broken(computed.task, LocalProtocolError("JOINT-001", "It died.")), ledger
    )
    assert sent == [ComputationFailure(study=peer.study, round=0)]
    assert broken.seat.is_over and broken.role is None and broken.box == b""
    assert give(peer, broken, computed, ledger) == (broken, [], ()), "too late"
    left, _, _ = give(
        peer, state, make_ask(peer, 1, SDQScriptState(step=1, leaves=(False,))), ledger
    )
    assert give(peer, left, computed, ledger) == (left, [], ())
    other, _, _ = give(peer, state, make_ask(peer, 1, query=QUERIES[0]), ledger)
    assert give(peer, other, computed, ledger) == (other, [], ()), "the task of another round"
    assert give(peer, peer.initial_state(), computed, ledger) == (peer.initial_state(), [], ())
    waiting, _ = before(peer, JointKeys)
    assert give(peer, waiting, computed, ledger) == (waiting, [], ()), (
        "nothing is computed before the keys arrive"
    )


def test_broken_computation_is_reported_with_the_party_at_fault() -> None:
    """Parties have numbers in the committee, databases have numbers on the roster."""
    peer = get_peer("plus", 1)
    state, computed = before(peer, Computed)
    assert [key.party for key in state.keys.keys] == [0, 1, 2]
    moved = tuple(
        key.replace(party=place) for key, place in zip(state.keys.keys, (1, 3, 4), strict=True)
    )
    for parties, party, named in ((state.keys.keys, 2, 2), (moved, 2, 4), (moved, None, None)):
        error = RemoteProtocolError("JOINT-002", "It sent what cannot be used.")
        given = Broken(computed.task, error, party)
        broken, sent, work = give(peer, state.replace(keys=state.keys.replace(keys=parties)), given)
        assert (
            sent == [ComputationFailure(study=peer.study, round=0, party=named)] and len(work) == 1
        )
        assert broken.seat.is_over and broken.box == b"" and broken.keys is None
        assert give(peer, broken, given) == (broken, [], ())


@pytest.mark.parametrize(
    "name, results",
    [("plus", [(3,), (-1,), (), (0, 0), (1 << 40,)]), ("selected", [(3,), (-1,), (), (1, 2)])],
)
def test_impossible_result_is_a_broken_computation(
    name: str, results: list[tuple[int, ...]]
) -> None:
    """Other parties may lie; a false result must neither stop this peer nor set its role."""
    peer = get_peer(name, 1)
    state, computed = before(peer, Computed)
    for result in results:
        broken, sent, _ = give(peer, state, Computed(computed.task, result))
        assert (
            sent == [ComputationFailure(study=peer.study, round=0)]
            and broken.seat.is_over
            and broken.role is None
        )
    for possible in range(3):
        _, (message,), _ = give(peer, state, Computed(computed.task, (possible,)))
        assert isinstance(message, ChoiceResult if name == "plus" else SumKeys)


# Keys of a joint computation.


@pytest.mark.parametrize("name", ["plus", "selected"])
def test_keys_are_accepted_once_with_valid_signatures(name: str) -> None:
    peer, ledger = get_peer(name), MemoryLedger()
    state, keys = before(peer, JointKeys)
    first, second, *rest = keys.keys
    exchanged = (
        first.replace(box=second.box, signature=second.signature),
        second.replace(box=first.box, signature=first.signature),
        *rest,
    )
    for bad, code in (
        (keys.replace(keys=exchanged), "CRYPTO-001"),
        (keys.replace(keys=(second, first, *rest)), "SDQ-003"),
        (keys.replace(keys=keys.keys[:-1]), "SDQ-003"),
        (keys.replace(keys=(first, second.replace(signature=bytes(64)), *rest)), "CRYPTO-001"),
    ):
        assert catch_code(peer, state, bad, ledger) == code
    taken, sent, work = give(peer, state, keys, ledger)
    if name == "plus":
        assert [type(message) for message in sent] == [SDQScores] and len(ledger.entries) == 1
    else:
        assert [item for item in work if isinstance(item, Compute)] == [
            Compute("joint/0", "select", 0, 5)
        ]
    assert give(peer, taken, keys, ledger) == (taken, [], ())
    assert give(peer, state, keys.replace(round=7), ledger) == (state, [], ())
    assert give(peer, peer.initial_state(), keys, ledger) == (peer.initial_state(), [], ())
    over = taken.close_computation()
    assert give(peer, over, keys, ledger) == (over, [], ()), (
        "also after the end, when its own key is erased"
    )


def test_earlier_key_of_the_same_database_is_rejected() -> None:
    peer = get_peer("plus")
    state, keys = before(peer, JointKeys)
    assert catch_code(peer, state.replace(box=bytes([9]) * 32), keys) == "SDQ-003"


def test_peer_rejects_keys_with_a_signed_zero_key() -> None:
    peer, party = get_peer("plus", 3), get_peer("plus", 1)
    state, keys = before(peer, JointKeys)
    context = peer.member.sum_params.make_context(0, compute_ask_digest(state.asked_for))
    signed = party.member.identity.sign(encode_key_statement(context, 1, bytes(32)))
    bad = keys.keys[1].replace(box=bytes(32), signature=signed)
    assert (
        catch_code(peer, state, keys.replace(keys=(keys.keys[0], bad, keys.keys[2])))
        == "CRYPTO-001"
    )


# The committee.


def test_party_computes_once_with_enough_scores() -> None:
    peer, ledger = get_peer("plus", 1), MemoryLedger()
    state, message = before(peer, Contributions)
    begun, _, work = give(peer, state, message, ledger)
    (asked,) = (item for item in work if isinstance(item, Compute))
    assert (asked.program, asked.me, asked.n_parties, len(asked.inputs)) == ("argmax", 1, 3, 3)
    assert give(peer, begun, message, ledger) == (begun, [], ())
    assert give(peer, begun, message.replace(boxes=message.boxes[:4]), ledger) == (begun, [], ()), (
        "never again with others"
    )
    state, computed = before(peer, Computed)
    done, sent, _ = give(peer, state, computed, ledger)
    assert isinstance(sent[0], ChoiceResult) and sent[0].position == computed.result[0]
    assert done.seat is not None and done.seat.is_over and done.box == b"" and done.keys is None
    assert give(peer, done, message, ledger) == (done, [], ())
    assert not ledger.entries


def test_contributions_with_too_little_noise_or_of_others_are_rejected() -> None:
    peer, other = get_peer("plus", 1), get_peer("plus", 2)
    state, message = before(peer, Contributions)
    _, theirs = before(other, Contributions)
    _, later = before(peer, Contributions, 1)
    a, b, c, d, e = message.boxes
    for boxes, code in (
        ((a, b, c), "SDQ-003"),
        ((a, b, c, c, d), "SDQ-003"),
        ((a, b, c, theirs.boxes[3]), "CRYPTO-001"),
        ((a, b, c, later.boxes[3]), "CRYPTO-001"),
        ((a, b, c, d.replace(member=4)), "CRYPTO-001"),
        ((a, b, c, d.replace(box=d.box + b"\0")), "CRYPTO-001"),
    ):
        assert catch_code(peer, state, message.replace(boxes=boxes)) == code
    four, _, work = give(peer, state, message.replace(boxes=(a, b, d, e)))
    assert any(isinstance(item, Compute) for item in work)
    assert give(peer, state, message.replace(round=5)) == (state, [], ())
    assert give(peer, peer.initial_state(), message) == (peer.initial_state(), [], ())
    assert four.seat.links


def test_database_outside_the_committee_rejects_contributions() -> None:
    peer = get_peer("plus", 4)
    state, _, _ = give(peer, *before(peer, JointKeys))
    _, message = before(get_peer("plus", 1), Contributions)
    assert catch_code(peer, state, message) == "SDQ-003"
    selected = get_peer("selected", 1)
    state, _ = before(selected, JointKeys)
    seated = state.replace(keys=before(selected, JointKeys)[1])
    assert catch_code(selected, seated, message.replace(study=selected.study)) == "SDQ-003"


def test_dealer_of_an_unusable_box_is_reported() -> None:
    peer, dealer = get_peer("plus", 1), get_peer("plus", 4)
    state, message = before(peer, Contributions)
    context = peer.member.sum_params.make_context(0, compute_ask_digest(state.asked_for))
    public, context = index_keys(state.keys)[1].box, committee_context(context, state.keys.keys)
    signed = dealer.member.identity.sign(_encode_box_statement(context, 4, 1, public, b"nothing"))
    bad = message.boxes[4].replace(box=b"nothing", signature=signed)
    closed, sent, work = give(peer, state, message.replace(boxes=(*message.boxes[:4], bad)))
    assert sent == [UnusableShares(study=peer.study, round=0, dealer=4)]
    assert closed.seat.is_over and not any(isinstance(item, Compute) for item in work)


def test_frames_are_sealed_opened_and_rejected_if_changed() -> None:
    peer, other = get_peer("plus", 1), get_peer("plus", 0)
    state, message = before(peer, Contributions)
    state, _, _ = give(peer, state, message)
    theirs, _, _ = give(other, *before(other, Contributions))
    theirs, (frame,), _ = give(other, theirs, Emitted("joint/0", 1, b"a share"))
    assert isinstance(frame, JointFrame) and (frame.sender, frame.to, frame.number) == (0, 1, 0)
    fed, _, work = give(peer, state, frame)
    assert work == (Feed("joint/0", 0, b"a share"),)
    assert give(peer, fed, frame)[2] == ()
    for bad in (
        frame.replace(sealed=frame.sealed[:-1] + b"\0"),
        frame.replace(to=2),
        frame.replace(sender=2),
        frame.replace(round=1),
    ):
        assert catch_code(peer, state, bad) == "JOINT-002"
    early, _ = before(peer, JointKeys)
    kept, _, work = give(peer, early, frame)
    assert work == () and kept.seat.unopened == (frame,)
