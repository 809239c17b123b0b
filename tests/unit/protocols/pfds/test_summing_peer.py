"""A holder in secure sums, against an aggregator that does not keep to the rules: nothing leaves that is not priced, and nothing twice."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from machine_runs import before, endings, give, spent
from pfds_cases import STUDIES, SUMMED, BareSums, LoggedSums, logged, pooled_rows
from pfds_sums import parted
from shoal.entropy import SeededEntropy
from shoal.errors import BudgetError, LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.privacy.private import Private
from shoal.protocols.base import START, Abort, Finish, MemoryLedger, Received, Refused, Started, Tick
from shoal.protocols.pfds.home import Home
from shoal.protocols.pfds.messages import Ask, Ended, Label, SharedModel, Tables, floats_in
from shoal.protocols.pfds.params import Rows
from shoal.protocols.pfds.scoring import LONGEST_REACH, MOST, ONE
from shoal.protocols.pfds.summing_peer import Answering, SummingPeer
from shoal.protocols.pfds.sums import Course, SumScript
from shoal.protocols.sums.messages import SumAgreement, SumBoxes, SumKeyList, SumKeys, SumMasked, SumShares, SumSurvivors
from toy.garbage import survives_garbage


def a_peer(name: str = "sums", i: int = 0) -> LoggedSums:
    return logged(name)[1][f"peer-{i}"]  # type: ignore[no-any-return]


def some_rows(name: str = "sums") -> Rows:
    return parted(STUDIES[name], pooled_rows(STUDIES[name]))[0]


def an_ask(peer: SummingPeer, at: int = 0, **changes: object) -> Ask:
    """A round with a course that was made up."""
    return Ask(study=peer.study, round=at, course=peer.script.start.replace(**{"step": at, **changes}))


def weights(peer: SummingPeer, value: int) -> Array:
    return Array.of(np.full(peer.params.n_cells, value, np.int64))


def refusal(peer: SummingPeer, state: Answering, message: Message, ledger: MemoryLedger | None = None) -> str:
    """The code of the error for which the aggregator is blamed; the ledger has not moved."""
    ledger = MemoryLedger() if ledger is None else ledger
    n = len(ledger.entries)
    with pytest.raises(RemoteProtocolError) as caught:
        give(peer, state, message, ledger)
    assert len(ledger.entries) == n
    return caught.value.code


# What is asked.


@pytest.mark.parametrize("name", SUMMED)
def test_a_holder_takes_part_in_the_round_that_is_asked(name: str) -> None:
    peer, ledger = a_peer(name), MemoryLedger()
    state, sent, _ = give(peer, peer.initial(), an_ask(peer), ledger)
    assert [type(message) for message in sent] == [SumKeys] and not ledger.entries
    assert load(dump(state), Answering) == state


def test_the_same_ask_twice_is_dropped_and_another_one_in_its_place_is_refused() -> None:
    peer, ledger = a_peer(), MemoryLedger()
    state, _, _ = give(peer, peer.initial(), an_ask(peer, 1), ledger)
    assert give(peer, state, an_ask(peer, 1), ledger) == (state, [], ())
    assert give(peer, state, an_ask(peer, 0), ledger) == (state, [], ()), "a round that goes back"
    assert give(peer, state, an_ask(peer, 0, weights=weights(peer, 1)), ledger) == (state, [], ())
    assert refusal(peer, state, an_ask(peer, 1, weights=weights(peer, 1)), ledger) == "PFDS-003"
    assert refusal(peer, state, an_ask(peer, 1, intercept=5), ledger) == "PFDS-003"


def test_a_question_that_was_answered_is_not_answered_for_other_weights() -> None:
    """Neither in its round, nor in a round that the aggregator calls otherwise, nor when the state is lost."""
    peer, ledger = a_peer(), MemoryLedger()
    ready, boxes = before(peer, SumBoxes)
    state, (masked,), _ = give(peer, ready, boxes, ledger)
    other = an_ask(peer, 0, weights=weights(peer, ONE))
    assert refusal(peer, state, other, ledger) == "PFDS-003"
    assert refusal(peer, state, other.replace(round=1), ledger) == "PFDS-003"
    lost, sent, _ = give(peer, peer.initial(), other, ledger)
    assert [type(message) for message in sent] == [SumKeys], "it has forgotten, but its ledger has not"
    again = lost.replace(sitting=ready.sitting)
    after, sent, _ = give(peer, again, boxes, ledger, seed=9)
    assert sent == [masked] and after.answered == ("tables",) and len(ledger.entries) == 1


def test_an_answer_of_before_the_state_was_lost_ends_the_sitting() -> None:
    peer, ledger = a_peer(), MemoryLedger()
    give(peer, *before(peer, SumBoxes), ledger)
    later, boxes = before(peer, SumBoxes, 1)
    confused = later.replace(asked=(), answered=(), asked_for=before(peer, Ask)[1])
    ended, (sent,), _ = give(peer, confused, boxes, ledger, seed=4)
    assert sent.round == 0, "the bytes of before"
    assert ended.sitting is not None and ended.sitting.is_over and len(ledger.entries) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"step": -1},
        {"step": 99},
        {"weights": Array.of(np.zeros(3, np.int64))},
        {"direction": Array.of(np.zeros(16, np.int32))},
        {"intercept": MOST * ONE + 1},
        {"intercept": -(1 << 62)},
        {"reaches": (0, 1 << 20)},
        {"reaches": (1 << 20, LONGEST_REACH + 1)},
    ],
)
def test_a_course_that_one_cannot_count_with_is_refused(changes: dict[str, object]) -> None:
    peer = a_peer()
    assert refusal(peer, peer.initial(), an_ask(peer, 0, **changes)) in ("PFDS-002", "MSG-005")


@pytest.mark.parametrize("value", [MOST * ONE + 1, -MOST * ONE - 1, (1 << 63) - 1, -(1 << 63)])
def test_huge_weights_are_refused(value: int) -> None:
    peer = a_peer()
    for part in ("weights", "direction"):
        assert refusal(peer, peer.initial(), an_ask(peer, 1, **{part: weights(peer, value)})) == "PFDS-002"
    for question in range(4):
        largest = an_ask(peer, question, weights=weights(peer, MOST * ONE), direction=weights(peer, -MOST * ONE))
        assert give(peer, peer.initial(), largest)[1], "the largest is no fault, and what it counts is bounded"
        counted = peer.script.count(largest.course, some_rows())
        assert np.abs(counted).sum() <= 256 * len(some_rows()) * 5


def test_a_round_beyond_the_end_or_with_the_course_of_another_is_refused() -> None:
    peer = a_peer()
    assert refusal(peer, peer.initial(), an_ask(peer, len(peer.script.questions))) == "PFDS-002"
    assert refusal(peer, peer.initial(), an_ask(peer, 0).replace(round=7)) == "PFDS-003"


def test_a_holder_that_was_away_goes_on_where_the_others_are() -> None:
    peer = a_peer()
    _, ask = before(peer, Ask, 2)
    state, sent, _ = give(peer, peer.initial(), ask)
    assert [type(message) for message in sent] == [SumKeys] and state.asked_for == ask


# Prices.


@pytest.mark.parametrize("name", SUMMED)
def test_prices_are_those_of_the_script(name: str) -> None:
    peer = a_peer(name)
    for question in peer.script.questions:
        assert peer.price(question) == SumScript(STUDIES[name]).prices[question]
    with pytest.raises(RemoteProtocolError, match="not part of the study"):
        peer.price("residuals/99")


class Silent(SumScript):
    """Asks what it has no price for."""

    @property
    def prices(self):  # type: ignore[no-untyped-def,override]
        return {"tables": super().prices["tables"]}


def test_what_has_no_price_is_not_answered() -> None:
    honest = a_peer()
    peer = SummingPeer(Silent(honest.params), honest.member, some_rows())
    assert refusal(peer, peer.initial(), an_ask(peer, 1)) == "PROTO-002"


class Greedy(SumScript):
    """Has a question too many."""

    @property
    def prices(self):  # type: ignore[no-untyped-def,override]
        return {**super().prices, "more": super().prices["tables"]}


@pytest.mark.parametrize("name", SUMMED)
def test_a_script_whose_questions_together_cost_more_than_the_study_is_refused(name: str) -> None:
    honest = a_peer(name)
    with pytest.raises(LocalProtocolError, match="cost more together"):
        SummingPeer(Greedy(honest.params), honest.member, some_rows(name))


def test_nobody_answers_without_noise_and_only_with_a_roster_that_fits() -> None:
    peer = a_peer()
    bare = SumScript(replace(peer.params, epsilon=math.inf))
    with pytest.raises(LocalProtocolError, match="without noise"):
        SummingPeer(bare, peer.member, some_rows())
    BareSums(bare, peer.member, some_rows())
    with pytest.raises(LocalProtocolError, match="cannot keep"):
        SummingPeer(SumScript(replace(peer.params, minimum=5)), peer.member, some_rows())


def test_what_is_answered_has_noise() -> None:
    for name in SUMMED:
        peer = a_peer(name)
        course = peer.script.start
        noise = peer.noisy(course, some_rows(name), SeededEntropy(1)) - peer.script.count(course, some_rows(name))
        assert noise.dtype == np.int64 and (noise != 0).mean() > 0.9
        # Each number has a draw of its own: one for all of them would cancel between any two.
        assert len(np.unique(noise)) > 0.9 * len(noise)


def test_rows_and_secrets_are_private() -> None:
    peer = a_peer()
    assert isinstance(peer._rows, Private)
    state, _ = before(peer, SumBoxes)
    assert all(str(secret) not in repr(state) for secret in (state.sitting.mask, state.sitting.own, state.sitting.box))


# Sums.


def test_the_question_is_put_when_all_is_there_and_paid_whether_or_not_the_sum_is_opened() -> None:
    peer, ledger = a_peer(), MemoryLedger()
    state, listed = before(peer, SumKeyList)
    state, sent, _ = give(peer, state, listed, ledger)
    assert [type(message) for message in sent] == [SumShares] and not ledger.entries
    state, boxes = before(peer, SumBoxes)
    state, sent, _ = give(peer, state, boxes, ledger)
    assert [type(message) for message in sent] == [SumMasked]
    assert [question for _, question in ledger.entries] == ["tables"]
    assert state.sitting is not None and state.sitting.phase == "masked"
    assert give(peer, state, boxes, ledger) == (state, [], ())


def test_what_belongs_to_a_round_that_was_left_is_dropped() -> None:
    peer, ledger = a_peer(), MemoryLedger()
    state, boxes = before(peer, SumBoxes)
    later, sent, _ = give(peer, state, an_ask(peer, 1), ledger)
    assert [type(message) for message in sent] == [SumKeys]
    assert give(peer, later, boxes, ledger) == (later, [], ())
    answered = state.replace(asked=("calibration",))
    later, sent, _ = give(peer, answered, an_ask(peer, 1), ledger)
    assert sent == [] and later.sitting is not None and later.sitting.is_over and later.sitting.own == b""
    assert give(peer, later, boxes, ledger) == (later, [], ())
    first, sent, _ = give(peer, peer.initial().replace(asked=("tables",)), an_ask(peer), ledger)
    assert sent == [] and first.sitting is None
    assert not ledger.entries


def test_messages_of_sums_without_a_sum_are_dropped() -> None:
    peer, ledger = a_peer(), MemoryLedger()
    for kind in (SumKeyList, SumBoxes, SumSurvivors, SumAgreement):
        _, message = before(peer, kind)
        assert give(peer, peer.initial(), message, ledger) == (peer.initial(), [], ())
    assert not ledger.entries


def test_too_few_members_or_survivors_are_refused() -> None:
    peer = a_peer()
    state, listed = before(peer, SumKeyList)
    assert (
        refusal(peer, state, listed.replace(members=listed.members[:3], entries=listed.entries[: 3 * len(listed.entries) // 5]))
        == "SUM-102"
    )
    state, survivors = before(peer, SumSurvivors)
    assert refusal(peer, state, survivors.replace(survivors=(0, 1, 2))) == "SUM-102"


def test_an_aggregator_does_not_send_what_holders_send() -> None:
    peer = a_peer()
    state, _ = before(peer, SumKeyList)
    _, keys = before(logged("sums")[0], SumKeys)
    assert refusal(peer, state, keys) == "PROTO-003"
    for message in (Tables(study=peer.study, counts=weights(peer, 0)), Label(study=peer.study, holders=("peer-0",))):
        assert refusal(peer, state, message) == "PROTO-003"
    with pytest.raises(RemoteProtocolError, match="not from the aggregator"):
        peer.step(peer.initial(), Received("peer-1", an_ask(peer)), START, SeededEntropy(1))


# The end.


@pytest.mark.parametrize("name", SUMMED)
def test_a_model_makes_it_finish_at_home(name: str) -> None:
    peer, ledger = a_peer(name), MemoryLedger()
    state, model = before(peer, SharedModel)
    over, sent, work = give(peer, state, model, ledger)
    (ending,) = endings(work)
    assert isinstance(ending, Finish) and isinstance(ending.result, Home) and not sent
    assert over.is_over and over.published == model and load(dump(over), Answering) == over
    for message in (model, an_ask(peer, 0), Ended(study=peer.study), Ended(study=peer.study, reason="No.")):
        assert give(peer, over, message, ledger) == (over, [], ())
    assert not ledger.entries


def test_a_model_of_nan_or_a_second_one_is_refused() -> None:
    peer = a_peer()
    state, model = before(peer, SharedModel)
    nan = floats_in(np.full(peer.params.n_cells, np.nan))
    assert refusal(peer, state, model.replace(weights=nan)) == "MSG-005"
    over, _, _ = give(peer, state, model)
    assert refusal(peer, over, model.replace(weights=model.variances)) == "PFDS-003"


@pytest.mark.parametrize("kind", [Ask, SumKeyList, SumBoxes, SumSurvivors])
def test_after_the_end_nothing_is_answered_and_no_secret_is_kept(kind: type[Message]) -> None:
    peer, ledger = a_peer(), MemoryLedger()
    state, message = before(peer, kind)
    for ended, n_endings in ((Ended(study=peer.study), 0), (Ended(study=peer.study, reason="Round 0 is given up."), 1)):
        over, sent, work = give(peer, state, ended, ledger)
        assert over.is_over and not sent and len(endings(work)) == n_endings
        assert over.sitting is None or over.sitting.own == over.sitting.mask == over.sitting.box == b""
        assert give(peer, over, message, ledger) == (over, [], ())
    (ending,) = endings(work)
    assert isinstance(ending, Abort) and ending.error.code == "PFDS-004"
    _, _, work = give(peer, give(peer, state, Ended(study=peer.study))[0], before(peer, SharedModel)[1], ledger)
    assert isinstance(endings(work)[0], Finish), "the model may come after the end"
    assert not ledger.entries


# Ledgers.


def test_a_ledger_that_refuses_ends_the_holder() -> None:
    peer = a_peer()
    ledger = MemoryLedger(limit=1.9 * peer.price("tables").epsilon)
    state, boxes = before(peer, SumBoxes)
    _, sent, work = give(peer, state, boxes, ledger)
    assert sent == [] and [type(one) for one in endings(work)] == [Abort] and spent(ledger) == 0
    refused, sent, work = give(peer, state.replace(asked=("tables",)), Refused("tables", BudgetError("BUDGET-002", "No.")))
    assert sent == [] and refused.asked == () and isinstance(work[0], Abort)


def test_nothing_happens_by_itself() -> None:
    peer = a_peer()
    for given in (Started(), Tick()):
        assert give(peer, peer.initial(), given) == (peer.initial(), [], ())


@pytest.mark.parametrize("kind", [Ask, SumKeyList, SumBoxes, SharedModel])
def test_garbage_is_refused_or_does_nothing(kind: type[Message]) -> None:
    peer = a_peer()
    state, message = before(peer, kind)
    assert survives_garbage(peer, [state], [message]) > 0


def test_a_course_is_public_and_whole() -> None:
    peer = a_peer()
    assert isinstance(before(peer, Ask)[1].course, Course)
    assert [before(peer, Ask, i)[1].round for i in range(4)] == [0, 1, 2, 3]
