"""A database's side against an aggregator that does not keep to the rules: nothing leaves that is not priced, and nothing twice."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from machine_runs import before, endings, give, spent
from sdq_cases import QUERIES, STUDIES, TOO_MUCH, Bare, Logged, logged, tables
from shoal.entropy import SeededEntropy
from shoal.errors import BudgetError, LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Message
from shoal.messages.codec import dump, load
from shoal.privacy.private import Private
from shoal.protocols.base import (
    START,
    Abort,
    Broken,
    Compute,
    Computed,
    Emitted,
    Feed,
    Finish,
    MemoryLedger,
    Received,
    Refused,
    Started,
    Tick,
)
from shoal.protocols.joint.messages import JointFrame
from shoal.protocols.sdq.following import Following
from shoal.protocols.sdq.joining import _box_statement, digest_of, key_statement, keys_of, seated
from shoal.protocols.sdq.messages import (
    MAX_REASON,
    Ask,
    BrokenOff,
    Contributions,
    Counts,
    Ended,
    JointKey,
    JointKeys,
    Scores,
    Settled,
    Unusable,
)
from shoal.protocols.sdq.paper import PaperScript
from shoal.protocols.sdq.peer import SDQPeer
from shoal.protocols.sdq.queries import Histogram
from shoal.protocols.sdq.script import Course
from shoal.protocols.sums.messages import SumAgreement, SumBoxes, SumKeyList, SumKeys, SumMasked, SumShares, SumSurvivors
from toy.garbage import survives_garbage


def a_peer(name: str, i: int = 0) -> Logged:
    return logged(name)[1][f"peer-{i}"]


def an_ask(peer: SDQPeer, at: int = 0, course: Course | None = None, **changes: object) -> Ask:
    return Ask(study=peer.study, round=at, course=course or Course(), **changes)  # type: ignore[arg-type]


def refusal(peer: SDQPeer, state: Following, message: Message, ledger: MemoryLedger | None = None) -> str:
    """The code of the error for which the aggregator is blamed; the ledger has not moved."""
    ledger = MemoryLedger() if ledger is None else ledger
    n = len(ledger.entries)
    with pytest.raises(RemoteProtocolError) as caught:
        give(peer, state, message, ledger)
    assert len(ledger.entries) == n
    return caught.value.code


# What is asked.


@pytest.mark.parametrize(
    "name, question, kind",
    [
        ("paper", None, SumKeys),
        ("selected", None, JointKey),
        ("plus", None, JointKey),
        ("bayes", None, SumKeys),
        ("local", "sizes/0", Counts),
    ],
)
def test_a_database_begins_the_round_that_is_asked(name: str, question: str | None, kind: type[Message]) -> None:
    peer, ledger = a_peer(name), MemoryLedger()
    state, sent, _ = give(peer, peer.initial(), an_ask(peer), ledger)
    assert [type(message) for message in sent] == [kind]
    assert [entry for _, entry in ledger.entries] == ([question] if question else [])
    assert load(dump(state), Following) == state


def test_a_database_that_is_not_seated_erases_its_key_and_still_deals() -> None:
    peer, ledger = a_peer("plus", 4), MemoryLedger()
    state, sent, _ = give(peer, peer.initial(), an_ask(peer), ledger)
    assert [type(message) for message in sent] == [JointKey] and state.box != b""
    state, keys = before(peer, JointKeys)
    state, sent, _ = give(peer, state, keys, ledger)
    assert [type(message) for message in sent] == [Scores] and state.box == b"" and state.keys == keys
    assert next(iter(ledger.entries))[1] == "choice/0"


def test_the_same_ask_twice_is_dropped_and_another_one_in_its_place_is_refused() -> None:
    for name in ("paper", "local", "plus", "selected"):
        peer, ledger = a_peer(name), MemoryLedger()
        state, _, _ = give(peer, peer.initial(), an_ask(peer, 3), ledger)
        assert give(peer, state, an_ask(peer, 3), ledger) == (state, [], ())
        assert give(peer, state, an_ask(peer, 2), ledger) == (state, [], ()), "a round that goes back"
        assert refusal(peer, state, an_ask(peer, 3, query=QUERIES[0]), ledger) == "SDQ-003"
        assert refusal(peer, state, an_ask(peer, 3, number=1), ledger) == "SDQ-003"


@pytest.mark.parametrize(
    "course", [Course(step=7), Course(step=-1), Course(choices=(9,)), Course(step=2, choices=(-5,)), Course(leaves=(True, False))]
)
@pytest.mark.parametrize("name", ["paper", "local", "plus", "sums", "bayes"])
def test_a_course_that_cannot_be_is_refused(name: str, course: Course) -> None:
    peer = a_peer(name)
    assert refusal(peer, peer.initial(), an_ask(peer, 0, course)) == "SDQ-001"


def test_a_round_beyond_the_end_is_refused() -> None:
    peer = a_peer("bayes")
    assert refusal(peer, peer.initial(), an_ask(peer, 0, Course(step=1))) == "SDQ-001"


def test_a_course_that_could_be_is_answered_at_its_price_and_its_question_once() -> None:
    """Whichever way the aggregator decides, a question is answered once: the same one in another round, about another course, is not."""
    peer, ledger = a_peer("local"), MemoryLedger()
    grown = [Course(step=2, choices=(attribute,)) for attribute in (0, 1)]
    state, sent, _ = give(peer, peer.initial(), an_ask(peer, 0, grown[0]), ledger)
    assert isinstance(sent[0], Counts)
    assert [question for _, question in ledger.entries] == ["sizes/1"]
    again, sent, _ = give(peer, state, an_ask(peer, 1, grown[1]), ledger)
    assert sent == [] and len(ledger.entries) == 1
    # With its state lost, the ledger knows.
    lost, sent, _ = give(peer, peer.initial(), an_ask(peer, 2, grown[1]), ledger, seed=9)
    assert [message.round for message in sent] == [0], "the stored bytes, which are of the first round"
    assert len(ledger.entries) == 1
    assert spent(ledger) == 0 and again.answered == lost.answered == ("sizes/1",)


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"query": QUERIES[0], "number": 2}, "SDQ-002"),
        ({"query": TOO_MUCH}, "SDQ-002"),
        ({"query": Histogram(features=("kind", "kind"))}, "SDQ-002"),
        ({"query": Histogram(features=())}, "SDQ-002"),
    ],
)
def test_a_free_count_that_the_study_does_not_allow_is_refused(changes: dict[str, object], code: str) -> None:
    for name in ("paper", "local", "selected"):
        peer = a_peer(name)
        assert refusal(peer, peer.initial(), an_ask(peer, 0, **changes)) == code
        bare = SDQPeer(peer.script, peer.member, tables()[0])
        assert refusal(bare, bare.initial(), an_ask(peer, 0, query=QUERIES[0])) == "PROTO-002"


class Silent(PaperScript):
    """Asks what it has no price for."""

    @property
    def prices(self):  # type: ignore[no-untyped-def,override]
        return {"sizes/0": super().prices["sizes/0"]}


def test_what_has_no_price_is_not_answered() -> None:
    for name in ("local", "paper", "selected"):
        honest = a_peer(name)
        peer = SDQPeer(Silent(honest.params), honest.member, tables()[0])
        assert refusal(peer, peer.initial(), an_ask(peer, 0, Course(step=2, choices=(0,)))) == "PROTO-002"
    with pytest.raises(RemoteProtocolError, match="not part of the study"):
        peer.price("query/0")


class Greedy(PaperScript):
    """Has a question too many."""

    @property
    def prices(self):  # type: ignore[no-untyped-def,override]
        return {**super().prices, "more": super().prices["sizes/0"]}


def test_a_script_whose_questions_together_cost_more_than_the_study_is_refused() -> None:
    """Some course may ask only some of them; an aggregator that makes up courses asks all."""
    honest = a_peer("paper")
    with pytest.raises(LocalProtocolError, match="cost more together"):
        SDQPeer(Greedy(honest.params), honest.member, tables()[0])


def test_prices_are_those_of_the_script_and_of_the_free_counts() -> None:
    peer = a_peer("plus")
    for question, event in peer.script.prices.items():
        assert peer.price(question) == event
    assert [peer.price(f"query/{i}").epsilon for i in (0, 1)] == [0.5, 0.5]
    with pytest.raises(RemoteProtocolError):
        peer.price("query/2")


def test_nobody_answers_without_noise() -> None:
    peer = a_peer("paper")
    bare = PaperScript(replace(peer.params, epsilon=math.inf))
    with pytest.raises(LocalProtocolError, match="without noise") as caught:
        SDQPeer(bare, peer.member, tables()[0])
    assert caught.value.code == "PROTO-001"
    Bare(bare, peer.member, tables()[0])


def test_rows_are_private() -> None:
    peer = a_peer("paper")
    assert isinstance(peer._table, Private)
    state, _ = before(peer, SumBoxes)
    assert all(str(secret) not in repr(state) for secret in (state.sitting.mask, state.sitting.own, state.sitting.box))
    role, _ = before(a_peer("selected"), SumKeyList)
    assert "role" not in repr(role) and role.role is not None


# Sums.


def test_the_question_is_put_when_all_is_there_and_paid_whether_or_not_the_sum_is_opened() -> None:
    peer, ledger = a_peer("paper"), MemoryLedger()
    state, listed = before(peer, SumKeyList)
    state, sent, _ = give(peer, state, listed, ledger)
    assert [type(message) for message in sent] == [SumShares] and not ledger.entries
    state, boxes = before(peer, SumBoxes)
    state, sent, _ = give(peer, state, boxes, ledger)
    assert [type(message) for message in sent] == [SumMasked]
    assert [question for _, question in ledger.entries] == ["sizes/0"]
    assert state.sitting is not None and state.sitting.phase == "masked"
    assert give(peer, state, boxes, ledger) == (state, [], ())


def test_what_belongs_to_a_round_that_was_left_is_dropped() -> None:
    """A slow database hears of the next round before it has heard the end of this one, whatever the next round is."""
    peer, ledger = a_peer("paper"), MemoryLedger()
    state, boxes = before(peer, SumBoxes)
    for ask in (
        an_ask(peer, 1, Course(step=1, leaves=(False,))),
        an_ask(peer, 1, query=QUERIES[0]),
        an_ask(peer, 1),
    ):
        later, sent, _ = give(peer, state, ask, ledger)
        assert [type(message) for message in sent] == [SumKeys]
        assert give(peer, later, boxes, ledger) == (later, [], ())
    answered = state.replace(asked=("sizes/0",))
    later, sent, _ = give(peer, answered, an_ask(peer, 1), ledger)
    assert sent == [] and later.sitting is not None and later.sitting.is_over
    assert give(peer, later, boxes, ledger) == (later, [], ())
    assert not ledger.entries


def test_a_sum_that_was_left_does_not_answer_a_choice_nor_a_selection() -> None:
    for name, ask in (("plus", {}), ("selected", {"query": QUERIES[0]})):
        peer, ledger = a_peer(name), MemoryLedger()
        state, boxes = before(peer, SumBoxes)
        number = state.asked_for.round + 1
        fresh = state.replace(asked=(), answered=())
        later, sent, _ = give(peer, fresh, an_ask(peer, number, **ask), ledger)
        assert [type(message) for message in sent] == [JointKey]
        assert give(peer, later, boxes, ledger) == (later, [], ())
        assert not ledger.entries


def test_messages_of_sums_without_a_sum_are_dropped() -> None:
    peer, ledger = a_peer("paper"), MemoryLedger()
    for kind in (SumKeyList, SumBoxes, SumSurvivors, SumAgreement):
        _, message = before(peer, kind)
        assert give(peer, peer.initial(), message, ledger) == (peer.initial(), [], ())
    frame = JointFrame(study=peer.study, round=0, sender=1, to=0, number=0, sealed=b"")
    assert give(peer, peer.initial(), frame, ledger) == (peer.initial(), [], ())
    assert not ledger.entries


def test_two_lists_of_keys_or_too_few_members_are_refused() -> None:
    peer, ledger = a_peer("paper"), MemoryLedger()
    state, listed = before(peer, SumKeyList)
    short = listed.replace(members=listed.members[:3], entries=listed.entries[: 3 * len(listed.entries) // 5])
    assert refusal(peer, state, short, ledger) == "SUM-102"
    state, survivors = before(peer, SumSurvivors)
    assert refusal(peer, state, survivors.replace(survivors=(0, 1, 2)), ledger) == "SUM-102"


def test_an_aggregator_does_not_send_what_databases_send() -> None:
    peer = a_peer("paper")
    key = JointKey(study=peer.study, round=0, box=bytes(32), signature=bytes(64))
    assert refusal(peer, peer.initial(), key) == "PROTO-003"
    state, _ = before(peer, SumKeyList)
    keys = SumKeys(study=peer.study, round=0, query=bytes(32), mask=bytes(32), box=bytes(32), commitment=bytes(32), signature=bytes(64))
    assert refusal(peer, state, keys) == "PROTO-003"
    with pytest.raises(RemoteProtocolError, match="not from the aggregator"):
        peer.step(peer.initial(), Received("peer-1", an_ask(peer)), START, SeededEntropy(1))


def test_the_end_is_the_end() -> None:
    for name in STUDIES:
        peer, ledger = a_peer(name), MemoryLedger()
        for kind in (Ask, Ended):
            state, _ = before(peer, kind)
            over, sent, work = give(peer, state, Ended(study=peer.study), ledger)
            assert [one.result for one in endings(work) if isinstance(one, Finish)] == [len(state.answered)] and not sent
            assert over.is_over and over.role is None and over.box == b"" and over.keys is None
            assert over.sitting is None or over.sitting.is_over
            for message in (Ended(study=peer.study), an_ask(peer, 99), an_ask(peer, 99, query=QUERIES[0])):
                assert give(peer, over, message, ledger) == (over, [], ()), "a database that was sent home stays there"
        assert not ledger.entries


@pytest.mark.parametrize("name, kind", [("plus", Contributions), ("paper", SumSurvivors), ("selected", SumBoxes), ("local", Ask)])
def test_a_study_that_was_given_up_ends_the_database_with_the_reason_and_without_secrets(name: str, kind: type[Message]) -> None:
    peer, ledger = a_peer(name, 1 if name == "plus" else 0), MemoryLedger()
    state, _ = before(peer, kind)
    over, sent, work = give(peer, state, Ended(study=peer.study, reason="Round 7 is given up."), ledger)
    (ending,) = endings(work)
    assert isinstance(ending, Abort) and ending.error.code == "SDQ-004" and not sent
    assert ending.error.what == "The miner ends the study without a result. It says: Round 7 is given up."
    assert over.is_over and over.role is None and over.box == b"" and over.keys is None
    assert over.sitting is None or over.sitting.own == over.sitting.mask == over.sitting.box == b""
    assert not ledger.entries


def test_the_words_of_a_stranger_are_shown_plainly_and_cut() -> None:
    peer = a_peer("paper")
    hostile = "\x1b[2J\u202efine\nwhy       none"
    _, _, (ending,) = give(peer, peer.initial(), Ended(study=peer.study, reason=hostile))
    assert isinstance(ending, Abort) and ending.error.what.isprintable() and "\\x1b[2J\\u202efine\\nwhy" in ending.error.what
    _, _, (ending,) = give(peer, peer.initial(), Ended(study=peer.study, reason="\x1b" * MAX_REASON))
    assert isinstance(ending, Abort) and len(ending.error.what) < MAX_REASON + 60


# Selection.


def test_two_are_selected_once_for_each_level() -> None:
    """Whoever colludes could otherwise let it be repeated until two of its own are selected, and learn sums without noise."""
    peer, ledger = a_peer("selected"), MemoryLedger()
    state, sent, _ = give(peer, peer.initial(), an_ask(peer), ledger)
    assert [type(message) for message in sent] == [JointKey] and state.selected == ("sizes/0",)
    assert refusal(peer, state, an_ask(peer, 1), ledger) == "SDQ-003"
    state, computed = before(peer, Computed)
    state, sent, _ = give(peer, state, computed, ledger)
    assert [type(message) for message in sent] == [SumKeys] and state.role is not None
    assert refusal(peer, state, an_ask(peer, 1), ledger) == "SDQ-003"
    state, sent, _ = give(peer, state, an_ask(peer, 1, query=QUERIES[0]), ledger)
    assert [type(message) for message in sent] == [JointKey] and state.selected == ("sizes/0", "query/0") and state.role is None
    assert refusal(peer, state, an_ask(peer, 2), ledger) == "SDQ-003"
    assert not ledger.entries


def test_the_answers_of_a_level_need_its_selection() -> None:
    peer, ledger = a_peer("selected"), MemoryLedger()
    first, deeper = Course(step=1, leaves=(False,)), Course(step=3, choices=(0,), leaves=(True,) * 3)
    state, sent, _ = give(peer, peer.initial(), an_ask(peer, 0, first), ledger)
    assert sent == [], "nothing was selected"
    state, ask = before(peer, Ask, 1)
    assert state.role is not None
    kept, sent, _ = give(peer, state, ask, ledger)
    assert [type(message) for message in sent] == [SumKeys] and kept.role == state.role
    lost, sent, _ = give(peer, state, an_ask(peer, 1, deeper), ledger)
    assert sent == [] and lost.role is None, "another level's"
    assert not ledger.entries


def test_who_was_selected_is_forgotten_after_the_answers() -> None:
    peer = a_peer("selected")
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


def test_a_selection_that_breaks_or_was_left_begins_no_sum() -> None:
    peer, ledger = a_peer("selected"), MemoryLedger()
    state, computed = before(peer, Computed)
    broken, sent, _ = give(peer, state, Broken(computed.task, LocalProtocolError("JOINT-001", "It died.")), ledger)
    assert sent == [BrokenOff(study=peer.study, round=0)]
    assert broken.seat.is_over and broken.role is None and broken.box == b""
    assert give(peer, broken, computed, ledger) == (broken, [], ()), "too late"
    left, _, _ = give(peer, state, an_ask(peer, 1, Course(step=1, leaves=(False,))), ledger)
    assert give(peer, left, computed, ledger) == (left, [], ())
    other, _, _ = give(peer, state, an_ask(peer, 1, query=QUERIES[0]), ledger)
    assert give(peer, other, computed, ledger) == (other, [], ()), "the task of another round"
    assert give(peer, peer.initial(), computed, ledger) == (peer.initial(), [], ())
    waiting, _ = before(peer, JointKeys)
    assert give(peer, waiting, computed, ledger) == (waiting, [], ()), "nothing is computed before keys are there"


def test_a_computation_that_broke_is_told_with_the_party_that_it_names() -> None:
    """Parties are counted among themselves, and databases on the roster."""
    peer = a_peer("plus", 1)
    state, computed = before(peer, Computed)
    assert [key.party for key in state.keys.keys] == [0, 1, 2]
    moved = tuple(key.replace(party=place) for key, place in zip(state.keys.keys, (1, 3, 4), strict=True))
    for parties, party, named in ((state.keys.keys, 2, 2), (moved, 2, 4), (moved, None, None)):
        error = RemoteProtocolError("JOINT-002", "It sent what cannot be used.")
        given = Broken(computed.task, error, party)
        broken, sent, work = give(peer, state.replace(keys=state.keys.replace(keys=parties)), given)
        assert sent == [BrokenOff(study=peer.study, round=0, party=named)] and len(work) == 1
        assert broken.seat.is_over and broken.box == b"" and broken.keys is None
        assert give(peer, broken, given) == (broken, [], ())


@pytest.mark.parametrize("name, results", [("plus", [(3,), (-1,), (), (0, 0), (1 << 40,)]), ("selected", [(3,), (-1,), (), (1, 2)])])
def test_a_result_that_cannot_be_is_a_computation_that_broke(name: str, results: list[tuple[int, ...]]) -> None:
    """Other parties may lie. Their lies neither end this database nor make a part in the noise that nobody has."""
    peer = a_peer(name, 1)
    state, computed = before(peer, Computed)
    for result in results:
        broken, sent, _ = give(peer, state, Computed(computed.task, result))
        assert sent == [BrokenOff(study=peer.study, round=0)] and broken.seat.is_over and broken.role is None
    for possible in range(3):
        _, (message,), _ = give(peer, state, Computed(computed.task, (possible,)))
        assert isinstance(message, Settled if name == "plus" else SumKeys)


# Keys of a joint computation.


@pytest.mark.parametrize("name", ["plus", "selected"])
def test_keys_are_taken_once_and_only_as_they_were_signed(name: str) -> None:
    peer, ledger = a_peer(name), MemoryLedger()
    state, keys = before(peer, JointKeys)
    first, second, *rest = keys.keys
    exchanged = (first.replace(box=second.box, signature=second.signature), second.replace(box=first.box, signature=first.signature), *rest)
    for bad, code in (
        (keys.replace(keys=exchanged), "CRYPTO-001"),
        (keys.replace(keys=(second, first, *rest)), "SDQ-003"),
        (keys.replace(keys=keys.keys[:-1]), "SDQ-003"),
        (keys.replace(keys=(first, second.replace(signature=bytes(64)), *rest)), "CRYPTO-001"),
    ):
        assert refusal(peer, state, bad, ledger) == code
    taken, sent, work = give(peer, state, keys, ledger)
    if name == "plus":
        assert [type(message) for message in sent] == [Scores] and len(ledger.entries) == 1
    else:
        assert [item for item in work if isinstance(item, Compute)] == [Compute("joint/0", "select", 0, 5)]
    assert give(peer, taken, keys, ledger) == (taken, [], ())
    assert give(peer, state, keys.replace(round=7), ledger) == (state, [], ())
    assert give(peer, peer.initial(), keys, ledger) == (peer.initial(), [], ())
    over = taken.closed()
    assert give(peer, over, keys, ledger) == (over, [], ()), "also when it is over, and its own key is erased"


def test_an_earlier_key_of_this_database_is_not_taken_for_its_own() -> None:
    peer = a_peer("plus")
    state, keys = before(peer, JointKeys)
    assert refusal(peer, state.replace(box=bytes([9]) * 32), keys) == "SDQ-003"


def test_a_key_that_everyone_could_agree_with_stops_nobody_for_good() -> None:
    peer, party = a_peer("plus", 3), a_peer("plus", 1)
    state, keys = before(peer, JointKeys)
    context = peer.member.terms.context(0, digest_of(state.asked_for))
    signed = party.member.identity.sign(key_statement(context, 1, bytes(32)))
    bad = keys.keys[1].replace(box=bytes(32), signature=signed)
    assert refusal(peer, state, keys.replace(keys=(keys.keys[0], bad, keys.keys[2]))) == "CRYPTO-001"


# The committee.


def test_a_party_computes_once_with_the_scores_of_enough() -> None:
    peer, ledger = a_peer("plus", 1), MemoryLedger()
    state, message = before(peer, Contributions)
    begun, _, work = give(peer, state, message, ledger)
    (asked,) = (item for item in work if isinstance(item, Compute))
    assert (asked.program, asked.me, asked.n_parties, len(asked.inputs)) == ("argmax", 1, 3, 3)
    assert give(peer, begun, message, ledger) == (begun, [], ())
    assert give(peer, begun, message.replace(boxes=message.boxes[:4]), ledger) == (begun, [], ()), "never again with others"
    state, computed = before(peer, Computed)
    done, sent, _ = give(peer, state, computed, ledger)
    assert isinstance(sent[0], Settled) and sent[0].position == computed.result[0]
    assert done.seat is not None and done.seat.is_over and done.box == b"" and done.keys is None
    assert give(peer, done, message, ledger) == (done, [], ())
    assert not ledger.entries


def test_contributions_that_hold_too_little_noise_or_are_others_are_refused() -> None:
    peer, other = a_peer("plus", 1), a_peer("plus", 2)
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
        assert refusal(peer, state, message.replace(boxes=boxes)) == code
    four, _, work = give(peer, state, message.replace(boxes=(a, b, d, e)))
    assert any(isinstance(item, Compute) for item in work)
    assert give(peer, state, message.replace(round=5)) == (state, [], ())
    assert give(peer, peer.initial(), message) == (peer.initial(), [], ())
    assert four.seat.links


def test_who_is_not_on_the_committee_computes_nothing() -> None:
    peer = a_peer("plus", 4)
    state, _, _ = give(peer, *before(peer, JointKeys))
    _, message = before(a_peer("plus", 1), Contributions)
    assert refusal(peer, state, message) == "SDQ-003"
    selected = a_peer("selected", 1)
    state, _ = before(selected, JointKeys)
    seated = state.replace(keys=before(selected, JointKeys)[1])
    assert refusal(selected, seated, message.replace(study=selected.study)) == "SDQ-003"


def test_a_dealer_whose_box_cannot_be_used_is_named_to_the_aggregator() -> None:
    peer, dealer = a_peer("plus", 1), a_peer("plus", 4)
    state, message = before(peer, Contributions)
    context = peer.member.terms.context(0, digest_of(state.asked_for))
    public, context = keys_of(state.keys)[1].box, seated(context, state.keys.keys)
    signed = dealer.member.identity.sign(_box_statement(context, 4, 1, public, b"nothing"))
    bad = message.boxes[4].replace(box=b"nothing", signature=signed)
    closed, sent, work = give(peer, state, message.replace(boxes=(*message.boxes[:4], bad)))
    assert sent == [Unusable(study=peer.study, round=0, dealer=4)]
    assert closed.seat.is_over and not any(isinstance(item, Compute) for item in work)


def test_frames_are_sealed_fed_and_refused_where_they_were_changed() -> None:
    peer, other = a_peer("plus", 1), a_peer("plus", 0)
    state, message = before(peer, Contributions)
    state, _, _ = give(peer, state, message)
    theirs, _, _ = give(other, *before(other, Contributions))
    theirs, (frame,), _ = give(other, theirs, Emitted("joint/0", 1, b"a share"))
    assert isinstance(frame, JointFrame) and (frame.sender, frame.to, frame.number) == (0, 1, 0)
    fed, _, work = give(peer, state, frame)
    assert work == (Feed("joint/0", 0, b"a share"),)
    assert give(peer, fed, frame)[2] == ()
    for bad in (frame.replace(sealed=frame.sealed[:-1] + b"\0"), frame.replace(to=2), frame.replace(sender=2), frame.replace(round=1)):
        assert refusal(peer, state, bad) == "JOINT-002"
    early, _ = before(peer, JointKeys)
    kept, _, work = give(peer, early, frame)
    assert work == () and kept.seat.unopened == (frame,)


# Ledgers.


@pytest.mark.parametrize(
    "name, kind, question", [("local", Ask, "sizes/0"), ("paper", SumBoxes, "sizes/0"), ("plus", JointKeys, "choice/0")]
)
def test_a_ledger_that_refuses_ends_the_database(name: str, kind: type[Message], question: str) -> None:
    peer = a_peer(name)
    ledger = MemoryLedger(limit=1.9 * peer.price(question).epsilon)
    _, sent, work = give(peer, *before(peer, kind), ledger)
    assert sent == [] and [type(one) for one in endings(work)] == [Abort]
    assert spent(ledger) == 0
    state, _ = before(peer, kind)
    refused, sent, work = give(peer, state.replace(asked=(question,)), Refused(question, BudgetError("BUDGET-002", "No.")))
    assert sent == [] and refused.asked == () and isinstance(work[0], Abort)


def test_an_answer_that_was_stored_before_the_state_was_lost_ends_the_sitting() -> None:
    peer, ledger = a_peer("paper"), MemoryLedger()
    state, boxes = before(peer, SumBoxes)
    give(peer, state, boxes, ledger)
    later, boxes = before(peer, SumBoxes, 1)
    again = later.replace(asked=(), answered=(), asked_for=later.asked_for.replace(course=Course()))
    ended, sent, _ = give(peer, again, boxes, ledger, seed=4)
    assert [message.round for message in sent] == [0], "the bytes of before"
    assert ended.sitting is not None and ended.sitting.is_over
    assert len(ledger.entries) == 1


def test_nothing_happens_by_itself() -> None:
    peer = a_peer("paper")
    for given in (Started(), Tick()):
        assert give(peer, peer.initial(), given) == (peer.initial(), [], ())


# Whatever a message says.


@pytest.mark.untraced
@pytest.mark.parametrize("name, i", [("paper", 0), ("local", 0), ("selected", 1), ("plus", 1), ("plus", 4)])
def test_garbage_is_refused_or_does_nothing(name: str, i: int) -> None:
    peer = a_peer(name, i)
    kinds = {"paper": [Ask, SumKeyList, SumBoxes], "local": [Ask], "selected": [Ask, JointKeys]}.get(name, [Ask, JointKeys])
    kinds = [*kinds, Contributions] if (name, i) == ("plus", 1) else kinds
    for kind in kinds:
        state, message = before(peer, kind)
        short = message.replace(boxes=message.boxes[:2]) if isinstance(message, Contributions) else message
        short = message.replace(keys=message.keys[:2]) if isinstance(message, JointKeys) else short
        assert survives_garbage(peer, [state], [short]) > 0
    frame = JointFrame(study=peer.study, round=0, sender=0, to=i, number=0, sealed=b"x")
    assert survives_garbage(peer, [before(peer, kinds[-1])[0]], [frame]) > 0
