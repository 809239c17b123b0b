"""The SDQ peer with a misbehaving aggregator: no answer without a price, and none twice."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import BudgetError, LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Message
from shoal.messages.codec import dump, load
from shoal.privacy.private import Private
from shoal.protocols.base import (
    START,
    Abort,
    Finish,
    MemoryLedger,
    Received,
    Refused,
    Started,
    Tick,
)
from shoal.protocols.mpc.party import JointFrame
from shoal.protocols.sdq.messages import (
    MAX_REASON,
    Contributions,
    Counts,
    JointKey,
    JointKeys,
    SDQAsk,
    SDQScores,
    SDQStudyEnd,
)
from shoal.protocols.sdq.paper import SDQPaperScript
from shoal.protocols.sdq.peer import SDQPeer, SDQPeerState
from shoal.protocols.sdq.queries import HistogramQuery
from shoal.protocols.sdq.script import SDQScriptState
from shoal.protocols.secagg.messages import (
    SumAgreement,
    SumBoxes,
    SumKeyList,
    SumKeys,
    SumMasked,
    SumShares,
    SumSurvivors,
)
from tests.support.machines import before, endings, give, spent
from tests.support.sdq import QUERIES, STUDIES, TOO_MUCH, Bare, tables
from tests.support.toy.garbage import survives_garbage
from tests.unit.protocols.sdq.peers import catch_code, get_peer, make_ask

# Asks.


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
def test_ask_begins_a_round_of_its_kind(
    name: str, question: str | None, kind: type[Message]
) -> None:
    peer, ledger = get_peer(name), MemoryLedger()
    state, sent, _ = give(peer, peer.initial_state(), make_ask(peer), ledger)
    assert [type(message) for message in sent] == [kind]
    assert [entry for _, entry in ledger.entries] == ([question] if question else [])
    assert load(dump(state), SDQPeerState) == state


def test_database_outside_the_committee_erases_its_key_and_still_deals() -> None:
    peer, ledger = get_peer("plus", 4), MemoryLedger()
    state, sent, _ = give(peer, peer.initial_state(), make_ask(peer), ledger)
    assert [type(message) for message in sent] == [JointKey] and state.box != b""
    state, keys = before(peer, JointKeys)
    state, sent, _ = give(peer, state, keys, ledger)
    assert (
        [type(message) for message in sent] == [SDQScores]
        and state.box == b""
        and state.keys == keys
    )
    assert next(iter(ledger.entries))[1] == "choice/0"


def test_repeated_ask_is_dropped_and_changed_ask_is_rejected() -> None:
    for name in ("paper", "local", "plus", "selected"):
        peer, ledger = get_peer(name), MemoryLedger()
        state, _, _ = give(peer, peer.initial_state(), make_ask(peer, 3), ledger)
        assert give(peer, state, make_ask(peer, 3), ledger) == (state, [], ())
        assert give(peer, state, make_ask(peer, 2), ledger) == (state, [], ()), (
            "a round that goes back"
        )
        assert catch_code(peer, state, make_ask(peer, 3, query=QUERIES[0]), ledger) == "SDQ-003"
        assert catch_code(peer, state, make_ask(peer, 3, number=1), ledger) == "SDQ-003"


@pytest.mark.parametrize(
    "course",
    [
        SDQScriptState(step=7),
        SDQScriptState(step=-1),
        SDQScriptState(choices=(9,)),
        SDQScriptState(step=2, choices=(-5,)),
        SDQScriptState(leaves=(True, False)),
    ],
)
@pytest.mark.parametrize("name", ["paper", "local", "plus", "sums", "bayes"])
def test_impossible_script_state_is_rejected(name: str, course: SDQScriptState) -> None:
    peer = get_peer(name)
    assert catch_code(peer, peer.initial_state(), make_ask(peer, 0, course)) == "SDQ-001"


def test_round_after_the_last_question_is_rejected() -> None:
    peer = get_peer("bayes")
    assert (
        catch_code(peer, peer.initial_state(), make_ask(peer, 0, SDQScriptState(step=1)))
        == "SDQ-001"
    )


def test_possible_state_is_answered_once_at_its_price() -> None:
    """A question is answered once: not again in another round or for another state."""
    peer, ledger = get_peer("local"), MemoryLedger()
    grown = [SDQScriptState(step=2, choices=(attribute,)) for attribute in (0, 1)]
    state, sent, _ = give(peer, peer.initial_state(), make_ask(peer, 0, grown[0]), ledger)
    assert isinstance(sent[0], Counts)
    assert [question for _, question in ledger.entries] == ["sizes/1"]
    again, sent, _ = give(peer, state, make_ask(peer, 1, grown[1]), ledger)
    assert sent == [] and len(ledger.entries) == 1
    # The ledger has the answer after the state is lost.
    lost, sent, _ = give(peer, peer.initial_state(), make_ask(peer, 2, grown[1]), ledger, seed=9)
    assert [message.round for message in sent] == [0], "the stored bytes of the first round"
    assert len(ledger.entries) == 1
    assert spent(ledger) == 0 and again.answered == lost.answered == ("sizes/1",)


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"query": QUERIES[0], "number": 2}, "SDQ-002"),
        ({"query": TOO_MUCH}, "SDQ-002"),
        ({"query": HistogramQuery(features=("kind", "kind"))}, "SDQ-002"),
        ({"query": HistogramQuery(features=())}, "SDQ-002"),
    ],
)
def test_disallowed_free_count_is_rejected(changes: dict[str, object], code: str) -> None:
    for name in ("paper", "local", "selected"):
        peer = get_peer(name)
        assert catch_code(peer, peer.initial_state(), make_ask(peer, 0, **changes)) == code
        bare = SDQPeer(peer.script, peer.member, tables()[0])
        assert (
            catch_code(bare, bare.initial_state(), make_ask(peer, 0, query=QUERIES[0]))
            == "PROTO-002"
        )


class UnpricedScript(SDQPaperScript):
    """A script with a question without a price."""

    @property
    def prices(self):  # type: ignore[no-untyped-def,override]
        return {"sizes/0": super().prices["sizes/0"]}


def test_question_without_price_is_not_answered() -> None:
    for name in ("local", "paper", "selected"):
        honest = get_peer(name)
        peer = SDQPeer(UnpricedScript(honest.params), honest.member, tables()[0])
        assert (
            catch_code(
                peer, peer.initial_state(), make_ask(peer, 0, SDQScriptState(step=2, choices=(0,)))
            )
            == "PROTO-002"
        )
    with pytest.raises(RemoteProtocolError, match="not part of the study"):
        peer.price("query/0")


class OverpricedScript(SDQPaperScript):
    """A script whose questions cost more than the study."""

    @property
    def prices(self):  # type: ignore[no-untyped-def,override]
        return {**super().prices, "more": super().prices["sizes/0"]}


def test_script_that_costs_more_than_the_study_is_rejected() -> None:
    """One state may ask only some of them; an aggregator that invents states asks all."""
    honest = get_peer("paper")
    with pytest.raises(LocalProtocolError, match="cost more together"):
        SDQPeer(OverpricedScript(honest.params), honest.member, tables()[0])


def test_prices_come_from_script_and_free_counts() -> None:
    peer = get_peer("plus")
    for question, event in peer.script.prices.items():
        assert peer.price(question) == event
    assert [peer.price(f"query/{i}").epsilon for i in (0, 1)] == [0.5, 0.5]
    with pytest.raises(RemoteProtocolError):
        peer.price("query/2")


def test_peer_without_noise_is_rejected() -> None:
    peer = get_peer("paper")
    bare = SDQPaperScript(replace(peer.params, epsilon=math.inf))
    with pytest.raises(LocalProtocolError, match="without noise") as caught:
        SDQPeer(bare, peer.member, tables()[0])
    assert caught.value.code == "PROTO-001"
    Bare(bare, peer.member, tables()[0])


def test_rows_and_secrets_are_not_shown() -> None:
    peer = get_peer("paper")
    assert isinstance(peer._table, Private)
    state, _ = before(peer, SumBoxes)
    assert all(
        str(secret) not in repr(state)
        for secret in (state.sitting.mask, state.sitting.own, state.sitting.box)
    )
    role, _ = before(get_peer("selected"), SumKeyList)
    assert "role" not in repr(role) and role.role is not None


# Sums.


def test_sum_is_paid_when_the_masked_vector_is_sent() -> None:
    peer, ledger = get_peer("paper"), MemoryLedger()
    state, listed = before(peer, SumKeyList)
    state, sent, _ = give(peer, state, listed, ledger)
    assert [type(message) for message in sent] == [SumShares] and not ledger.entries
    state, boxes = before(peer, SumBoxes)
    state, sent, _ = give(peer, state, boxes, ledger)
    assert [type(message) for message in sent] == [SumMasked]
    assert [question for _, question in ledger.entries] == ["sizes/0"]
    assert state.sitting is not None and state.sitting.phase == "masked"
    assert give(peer, state, boxes, ledger) == (state, [], ())


def test_messages_of_a_left_round_are_dropped() -> None:
    """A slow database receives the next ask before the end of this round."""
    peer, ledger = get_peer("paper"), MemoryLedger()
    state, boxes = before(peer, SumBoxes)
    for ask in (
        make_ask(peer, 1, SDQScriptState(step=1, leaves=(False,))),
        make_ask(peer, 1, query=QUERIES[0]),
        make_ask(peer, 1),
    ):
        later, sent, _ = give(peer, state, ask, ledger)
        assert [type(message) for message in sent] == [SumKeys]
        assert give(peer, later, boxes, ledger) == (later, [], ())
    answered = state.replace(asked=("sizes/0",))
    later, sent, _ = give(peer, answered, make_ask(peer, 1), ledger)
    assert sent == [] and later.sitting is not None and later.sitting.is_over
    assert give(peer, later, boxes, ledger) == (later, [], ())
    assert not ledger.entries


def test_left_sum_does_not_answer_a_choice_or_selection() -> None:
    for name, ask in (("plus", {}), ("selected", {"query": QUERIES[0]})):
        peer, ledger = get_peer(name), MemoryLedger()
        state, boxes = before(peer, SumBoxes)
        number = state.asked_for.round + 1
        fresh = state.replace(asked=(), answered=())
        later, sent, _ = give(peer, fresh, make_ask(peer, number, **ask), ledger)
        assert [type(message) for message in sent] == [JointKey]
        assert give(peer, later, boxes, ledger) == (later, [], ())
        assert not ledger.entries


def test_messages_of_sums_without_a_sum_are_dropped() -> None:
    peer, ledger = get_peer("paper"), MemoryLedger()
    for kind in (SumKeyList, SumBoxes, SumSurvivors, SumAgreement):
        _, message = before(peer, kind)
        assert give(peer, peer.initial_state(), message, ledger) == (peer.initial_state(), [], ())
    frame = JointFrame(study=peer.study, round=0, sender=1, to=0, number=0, sealed=b"")
    assert give(peer, peer.initial_state(), frame, ledger) == (peer.initial_state(), [], ())
    assert not ledger.entries


def test_short_lists_of_keys_or_survivors_are_rejected() -> None:
    peer, ledger = get_peer("paper"), MemoryLedger()
    state, listed = before(peer, SumKeyList)
    short = listed.replace(
        members=listed.members[:3], entries=listed.entries[: 3 * len(listed.entries) // 5]
    )
    assert catch_code(peer, state, short, ledger) == "SUM-102"
    state, survivors = before(peer, SumSurvivors)
    assert catch_code(peer, state, survivors.replace(survivors=(0, 1, 2)), ledger) == "SUM-102"


def test_messages_of_databases_are_rejected() -> None:
    peer = get_peer("paper")
    key = JointKey(study=peer.study, round=0, box=bytes(32), signature=bytes(64))
    assert catch_code(peer, peer.initial_state(), key) == "PROTO-003"
    state, _ = before(peer, SumKeyList)
    keys = SumKeys(
        study=peer.study,
        round=0,
        query=bytes(32),
        mask=bytes(32),
        box=bytes(32),
        commitment=bytes(32),
        signature=bytes(64),
    )
    assert catch_code(peer, state, keys) == "PROTO-003"
    with pytest.raises(RemoteProtocolError, match="not from the aggregator"):
        peer.step(peer.initial_state(), Received("peer-1", make_ask(peer)), START, SeededEntropy(1))


def test_peer_answers_nothing_after_the_end() -> None:
    for name in STUDIES:
        peer, ledger = get_peer(name), MemoryLedger()
        for kind in (SDQAsk, SDQStudyEnd):
            state, _ = before(peer, kind)
            over, sent, work = give(peer, state, SDQStudyEnd(study=peer.study), ledger)
            assert [one.result for one in endings(work) if isinstance(one, Finish)] == [
                len(state.answered)
            ] and not sent
            assert over.is_over and over.role is None and over.box == b"" and over.keys is None
            assert over.sitting is None or over.sitting.is_over
            for message in (
                SDQStudyEnd(study=peer.study),
                make_ask(peer, 99),
                make_ask(peer, 99, query=QUERIES[0]),
            ):
                assert give(peer, over, message, ledger) == (over, [], ()), (
                    "a finished peer stays finished"
                )
        assert not ledger.entries


@pytest.mark.parametrize(
    "name, kind",
    [("plus", Contributions), ("paper", SumSurvivors), ("selected", SumBoxes), ("local", SDQAsk)],
)
def test_failed_study_aborts_with_the_reason_and_erases_secrets(
    name: str, kind: type[Message]
) -> None:
    peer, ledger = get_peer(name, 1 if name == "plus" else 0), MemoryLedger()
    state, _ = before(peer, kind)
    over, sent, work = give(
        peer, state, SDQStudyEnd(study=peer.study, reason="Round 7 is given up."), ledger
    )
    (ending,) = endings(work)
    assert isinstance(ending, Abort) and ending.error.code == "SDQ-004" and not sent
    assert (
        ending.error.what
        == "The aggregator ended the study without a result. Its reason: Round 7 is given up."
    )
    assert over.is_over and over.role is None and over.box == b"" and over.keys is None
    assert over.sitting is None or over.sitting.own == over.sitting.mask == over.sitting.box == b""
    assert not ledger.entries


def test_reason_of_the_aggregator_is_escaped_and_cut() -> None:
    peer = get_peer("paper")
    hostile = "\x1b[2J\u202efine\nwhy       none"
    _, _, (ending,) = give(
        peer, peer.initial_state(), SDQStudyEnd(study=peer.study, reason=hostile)
    )
    assert (
        isinstance(ending, Abort)
        and ending.error.what.isprintable()
        and "\\x1b[2J\\u202efine\\nwhy" in ending.error.what
    )
    _, _, (ending,) = give(
        peer, peer.initial_state(), SDQStudyEnd(study=peer.study, reason="\x1b" * MAX_REASON)
    )
    assert isinstance(ending, Abort) and len(ending.error.what) < MAX_REASON + 70


# Ledgers.


@pytest.mark.parametrize(
    "name, kind, question",
    [("local", SDQAsk, "sizes/0"), ("paper", SumBoxes, "sizes/0"), ("plus", JointKeys, "choice/0")],
)
def test_peer_aborts_if_the_ledger_refuses(name: str, kind: type[Message], question: str) -> None:
    peer = get_peer(name)
    ledger = MemoryLedger(limit=1.9 * peer.price(question).epsilon)
    _, sent, work = give(peer, *before(peer, kind), ledger)
    assert sent == [] and [type(one) for one in endings(work)] == [Abort]
    assert spent(ledger) == 0
    state, _ = before(peer, kind)
    refused, sent, work = give(
        peer, state.replace(asked=(question,)), Refused(question, BudgetError("BUDGET-002", "No."))
    )
    assert sent == [] and refused.asked == () and isinstance(work[0], Abort)


def test_stored_answer_after_lost_state_ends_the_sum() -> None:
    peer, ledger = get_peer("paper"), MemoryLedger()
    state, boxes = before(peer, SumBoxes)
    give(peer, state, boxes, ledger)
    later, boxes = before(peer, SumBoxes, 1)
    again = later.replace(
        asked=(), answered=(), asked_for=later.asked_for.replace(course=SDQScriptState())
    )
    ended, sent, _ = give(peer, again, boxes, ledger, seed=4)
    assert [message.round for message in sent] == [0], "the stored bytes"
    assert ended.sitting is not None and ended.sitting.is_over
    assert len(ledger.entries) == 1


def test_start_and_tick_without_ask_do_nothing() -> None:
    peer = get_peer("paper")
    for given in (Started(), Tick()):
        assert give(peer, peer.initial_state(), given) == (peer.initial_state(), [], ())


# Messages with arbitrary content.


@pytest.mark.untraced
@pytest.mark.parametrize(
    "name, i", [("paper", 0), ("local", 0), ("selected", 1), ("plus", 1), ("plus", 4)]
)
def test_peer_rejects_or_ignores_garbage(name: str, i: int) -> None:
    peer = get_peer(name, i)
    kinds = {
        "paper": [SDQAsk, SumKeyList, SumBoxes],
        "local": [SDQAsk],
        "selected": [SDQAsk, JointKeys],
    }.get(name, [SDQAsk, JointKeys])
    kinds = [*kinds, Contributions] if (name, i) == ("plus", 1) else kinds
    for kind in kinds:
        state, message = before(peer, kind)
        short = (
            message.replace(boxes=message.boxes[:2])
            if isinstance(message, Contributions)
            else message
        )
        short = message.replace(keys=message.keys[:2]) if isinstance(message, JointKeys) else short
        assert survives_garbage(peer, [state], [short]) > 0
    frame = JointFrame(study=peer.study, round=0, sender=0, to=i, number=0, sealed=b"x")
    assert survives_garbage(peer, [before(peer, kinds[-1])[0]], [frame]) > 0
