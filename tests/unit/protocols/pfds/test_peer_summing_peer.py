"""The secure-sum peer with a misbehaving aggregator: each answer has a price, none twice."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.entropy import SeededEntropy
from shoal.errors import BudgetError, LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array, Message
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
from shoal.protocols.pfds.messages import (
    HolderTables,
    LabellingHolders,
    PFDSAsk,
    PFDSScriptState,
    PFDSStudyEnd,
    SharedModel,
    encode_floats,
)
from shoal.protocols.pfds.params import PFDSRows
from shoal.protocols.pfds.peer import PFDSSecureSumPeerState, SecureSumPeer
from shoal.protocols.pfds.personal_model import PersonalModel
from shoal.protocols.pfds.refinement import MAX_REACH, MAX_WEIGHT, ONE
from shoal.protocols.pfds.script import SecureSumScript
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
from tests.support.pfds import STUDIES, SUMMED, BareSums, LoggedSums, logged, parted, pooled_rows
from tests.support.toy.garbage import survives_garbage


def get_peer(name: str = "sums", i: int = 0) -> LoggedSums:
    return logged(name)[1][f"peer-{i}"]  # type: ignore[no-any-return]


def make_rows(name: str = "sums") -> PFDSRows:
    return parted(STUDIES[name], pooled_rows(STUDIES[name]))[0]


def make_ask(peer: SecureSumPeer, at: int = 0, **changes: object) -> PFDSAsk:
    """Return a round with an invented state."""
    return PFDSAsk(
        study=peer.study,
        round=at,
        course=peer.script.initial_state.replace(**{"step": at, **changes}),
    )


def make_weights(peer: SecureSumPeer, value: int) -> Array:
    return Array.from_values(np.full(peer.params.n_cells, value, np.int64))


def catch_code(
    peer: SecureSumPeer,
    state: PFDSSecureSumPeerState,
    message: Message,
    ledger: MemoryLedger | None = None,
) -> str:
    """Return the code of the error that names the aggregator; the ledger is unchanged."""
    ledger = MemoryLedger() if ledger is None else ledger
    n = len(ledger.entries)
    with pytest.raises(RemoteProtocolError) as caught:
        give(peer, state, message, ledger)
    assert len(ledger.entries) == n
    return caught.value.code


# Asks.


@pytest.mark.parametrize("name", SUMMED)
def test_ask_begins_a_sum(name: str) -> None:
    peer, ledger = get_peer(name), MemoryLedger()
    state, sent, _ = give(peer, peer.initial_state(), make_ask(peer), ledger)
    assert [type(message) for message in sent] == [SumKeys] and not ledger.entries
    assert load(dump(state), PFDSSecureSumPeerState) == state


def test_repeated_ask_is_dropped_and_changed_ask_is_rejected() -> None:
    peer, ledger = get_peer(), MemoryLedger()
    state, _, _ = give(peer, peer.initial_state(), make_ask(peer, 1), ledger)
    assert give(peer, state, make_ask(peer, 1), ledger) == (state, [], ())
    assert give(peer, state, make_ask(peer, 0), ledger) == (state, [], ()), "a round that goes back"
    assert give(peer, state, make_ask(peer, 0, weights=make_weights(peer, 1)), ledger) == (
        state,
        [],
        (),
    )
    assert (
        catch_code(peer, state, make_ask(peer, 1, weights=make_weights(peer, 1)), ledger)
        == "PFDS-003"
    )
    assert catch_code(peer, state, make_ask(peer, 1, intercept=5), ledger) == "PFDS-003"


def test_answered_question_is_not_answered_for_other_weights() -> None:
    """Not in its round, not in a round with another number, and not after a lost state."""
    peer, ledger = get_peer(), MemoryLedger()
    ready, boxes = before(peer, SumBoxes)
    state, (masked,), _ = give(peer, ready, boxes, ledger)
    other = make_ask(peer, 0, weights=make_weights(peer, ONE))
    assert catch_code(peer, state, other, ledger) == "PFDS-003"
    assert catch_code(peer, state, other.replace(round=1), ledger) == "PFDS-003"
    lost, sent, _ = give(peer, peer.initial_state(), other, ledger)
    assert [type(message) for message in sent] == [SumKeys], (
        "the state is lost, but the ledger has the answer"
    )
    again = lost.replace(sitting=ready.sitting)
    after, sent, _ = give(peer, again, boxes, ledger, seed=9)
    assert sent == [masked] and after.answered == ("tables",) and len(ledger.entries) == 1


def test_stored_answer_after_lost_state_ends_the_sum() -> None:
    peer, ledger = get_peer(), MemoryLedger()
    give(peer, *before(peer, SumBoxes), ledger)
    later, boxes = before(peer, SumBoxes, 1)
    confused = later.replace(asked=(), answered=(), asked_for=before(peer, PFDSAsk)[1])
    ended, (sent,), _ = give(peer, confused, boxes, ledger, seed=4)
    assert sent.round == 0, "the stored bytes"
    assert ended.sitting is not None and ended.sitting.is_over and len(ledger.entries) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"step": -1},
        {"step": 99},
        {"weights": Array.from_values(np.zeros(3, np.int64))},
        {"direction": Array.from_values(np.zeros(16, np.int32))},
        {"intercept": MAX_WEIGHT * ONE + 1},
        {"intercept": -(1 << 62)},
        {"reaches": (0, 1 << 20)},
        {"reaches": (1 << 20, MAX_REACH + 1)},
    ],
)
def test_impossible_script_state_is_rejected(changes: dict[str, object]) -> None:
    peer = get_peer()
    assert catch_code(peer, peer.initial_state(), make_ask(peer, 0, **changes)) in (
        "PFDS-002",
        "MSG-005",
    )


@pytest.mark.parametrize(
    "value", [MAX_WEIGHT * ONE + 1, -MAX_WEIGHT * ONE - 1, (1 << 63) - 1, -(1 << 63)]
)
def test_too_large_weights_are_rejected(value: int) -> None:
    peer = get_peer()
    for part in ("weights", "direction"):
        assert (
            catch_code(
                peer, peer.initial_state(), make_ask(peer, 1, **{part: make_weights(peer, value)})
            )
            == "PFDS-002"
        )
    for question in range(4):
        largest = make_ask(
            peer,
            question,
            weights=make_weights(peer, MAX_WEIGHT * ONE),
            direction=make_weights(peer, -MAX_WEIGHT * ONE),
        )
        assert give(peer, peer.initial_state(), largest)[1], (
            "the largest weights are allowed, and counts are bounded"
        )
        counted = peer.script.count(largest.course, make_rows())
        assert np.abs(counted).sum() <= 256 * len(make_rows()) * 5


def test_round_after_the_end_or_with_another_state_is_rejected() -> None:
    peer = get_peer()
    assert (
        catch_code(peer, peer.initial_state(), make_ask(peer, len(peer.script.questions)))
        == "PFDS-002"
    )
    assert catch_code(peer, peer.initial_state(), make_ask(peer, 0).replace(round=7)) == "PFDS-003"


def test_absent_holder_joins_the_current_round() -> None:
    peer = get_peer()
    _, ask = before(peer, PFDSAsk, 2)
    state, sent, _ = give(peer, peer.initial_state(), ask)
    assert [type(message) for message in sent] == [SumKeys] and state.asked_for == ask


# Prices.


@pytest.mark.parametrize("name", SUMMED)
def test_prices_come_from_the_script(name: str) -> None:
    peer = get_peer(name)
    for question in peer.script.questions:
        assert peer.price(question) == SecureSumScript(STUDIES[name]).prices[question]
    with pytest.raises(RemoteProtocolError, match="not part of the study"):
        peer.price("residuals/99")


class UnpricedScript(SecureSumScript):
    """A script with a question without a price."""

    @property
    def prices(self):  # type: ignore[no-untyped-def,override]
        return {"tables": super().prices["tables"]}


def test_question_without_price_is_not_answered() -> None:
    honest = get_peer()
    peer = SecureSumPeer(UnpricedScript(honest.params), honest.member, make_rows())
    assert catch_code(peer, peer.initial_state(), make_ask(peer, 1)) == "PROTO-002"


class OverpricedScript(SecureSumScript):
    """A script whose questions cost more than the study."""

    @property
    def prices(self):  # type: ignore[no-untyped-def,override]
        return {**super().prices, "more": super().prices["tables"]}


@pytest.mark.parametrize("name", SUMMED)
def test_script_that_costs_more_than_the_study_is_rejected(name: str) -> None:
    honest = get_peer(name)
    with pytest.raises(LocalProtocolError, match="cost more together"):
        SecureSumPeer(OverpricedScript(honest.params), honest.member, make_rows(name))


def test_peer_rejects_noiseless_study_and_wrong_roster() -> None:
    peer = get_peer()
    bare = SecureSumScript(replace(peer.params, epsilon=math.inf))
    with pytest.raises(LocalProtocolError, match="without noise"):
        SecureSumPeer(bare, peer.member, make_rows())
    BareSums(bare, peer.member, make_rows())
    with pytest.raises(LocalProtocolError, match="does not fit the study"):
        SecureSumPeer(SecureSumScript(replace(peer.params, minimum=5)), peer.member, make_rows())


def test_answers_contain_noise() -> None:
    for name in SUMMED:
        peer = get_peer(name)
        course = peer.script.initial_state
        noise = peer.draw_noisy_answer(
            course, make_rows(name), SeededEntropy(1)
        ) - peer.script.count(course, make_rows(name))
        assert noise.dtype == np.int64 and (noise != 0).mean() > 0.9
        # Each number has a separate draw: a common draw would cancel between two numbers.
        assert len(np.unique(noise)) > 0.9 * len(noise)


def test_rows_and_secrets_are_not_shown() -> None:
    peer = get_peer()
    assert isinstance(peer._rows, Private)
    state, _ = before(peer, SumBoxes)
    assert all(
        str(secret) not in repr(state)
        for secret in (state.sitting.mask, state.sitting.own, state.sitting.box)
    )


# Sums.


def test_sum_is_paid_when_the_masked_vector_is_sent() -> None:
    peer, ledger = get_peer(), MemoryLedger()
    state, listed = before(peer, SumKeyList)
    state, sent, _ = give(peer, state, listed, ledger)
    assert [type(message) for message in sent] == [SumShares] and not ledger.entries
    state, boxes = before(peer, SumBoxes)
    state, sent, _ = give(peer, state, boxes, ledger)
    assert [type(message) for message in sent] == [SumMasked]
    assert [question for _, question in ledger.entries] == ["tables"]
    assert state.sitting is not None and state.sitting.phase == "masked"
    assert give(peer, state, boxes, ledger) == (state, [], ())


def test_messages_of_a_left_round_are_dropped() -> None:
    peer, ledger = get_peer(), MemoryLedger()
    state, boxes = before(peer, SumBoxes)
    later, sent, _ = give(peer, state, make_ask(peer, 1), ledger)
    assert [type(message) for message in sent] == [SumKeys]
    assert give(peer, later, boxes, ledger) == (later, [], ())
    answered = state.replace(asked=("calibration",))
    later, sent, _ = give(peer, answered, make_ask(peer, 1), ledger)
    assert (
        sent == []
        and later.sitting is not None
        and later.sitting.is_over
        and later.sitting.own == b""
    )
    assert give(peer, later, boxes, ledger) == (later, [], ())
    first, sent, _ = give(
        peer, peer.initial_state().replace(asked=("tables",)), make_ask(peer), ledger
    )
    assert sent == [] and first.sitting is None
    assert not ledger.entries


def test_messages_of_sums_without_a_sum_are_dropped() -> None:
    peer, ledger = get_peer(), MemoryLedger()
    for kind in (SumKeyList, SumBoxes, SumSurvivors, SumAgreement):
        _, message = before(peer, kind)
        assert give(peer, peer.initial_state(), message, ledger) == (peer.initial_state(), [], ())
    assert not ledger.entries


def test_short_lists_of_keys_or_survivors_are_rejected() -> None:
    peer = get_peer()
    state, listed = before(peer, SumKeyList)
    assert (
        catch_code(
            peer,
            state,
            listed.replace(
                members=listed.members[:3], entries=listed.entries[: 3 * len(listed.entries) // 5]
            ),
        )
        == "SUM-102"
    )
    state, survivors = before(peer, SumSurvivors)
    assert catch_code(peer, state, survivors.replace(survivors=(0, 1, 2))) == "SUM-102"


def test_messages_of_holders_are_rejected() -> None:
    peer = get_peer()
    state, _ = before(peer, SumKeyList)
    _, keys = before(logged("sums")[0], SumKeys)
    assert catch_code(peer, state, keys) == "PROTO-003"
    for message in (
        HolderTables(study=peer.study, counts=make_weights(peer, 0)),
        LabellingHolders(study=peer.study, holders=("peer-0",)),
    ):
        assert catch_code(peer, state, message) == "PROTO-003"
    with pytest.raises(RemoteProtocolError, match="not from the aggregator"):
        peer.step(peer.initial_state(), Received("peer-1", make_ask(peer)), START, SeededEntropy(1))


# The end.


@pytest.mark.parametrize("name", SUMMED)
def test_published_model_finishes_the_peer_with_a_personal_model(name: str) -> None:
    peer, ledger = get_peer(name), MemoryLedger()
    state, model = before(peer, SharedModel)
    over, sent, work = give(peer, state, model, ledger)
    (ending,) = endings(work)
    assert isinstance(ending, Finish) and isinstance(ending.result, PersonalModel) and not sent
    assert (
        over.is_over
        and over.published == model
        and load(dump(over), PFDSSecureSumPeerState) == over
    )
    for message in (
        model,
        make_ask(peer, 0),
        PFDSStudyEnd(study=peer.study),
        PFDSStudyEnd(study=peer.study, reason="No."),
    ):
        assert give(peer, over, message, ledger) == (over, [], ())
    assert not ledger.entries


def test_model_with_nan_or_second_model_is_rejected() -> None:
    peer = get_peer()
    state, model = before(peer, SharedModel)
    nan = encode_floats(np.full(peer.params.n_cells, np.nan))
    assert catch_code(peer, state, model.replace(weights=nan)) == "MSG-005"
    over, _, _ = give(peer, state, model)
    assert catch_code(peer, over, model.replace(weights=model.variances)) == "PFDS-003"


@pytest.mark.parametrize("kind", [PFDSAsk, SumKeyList, SumBoxes, SumSurvivors])
def test_end_stops_answers_and_erases_secrets(kind: type[Message]) -> None:
    peer, ledger = get_peer(), MemoryLedger()
    state, message = before(peer, kind)
    for ended, n_endings in (
        (PFDSStudyEnd(study=peer.study), 0),
        (PFDSStudyEnd(study=peer.study, reason="Round 0 is given up."), 1),
    ):
        over, sent, work = give(peer, state, ended, ledger)
        assert over.is_over and not sent and len(endings(work)) == n_endings
        assert (
            over.sitting is None or over.sitting.own == over.sitting.mask == over.sitting.box == b""
        )
        assert give(peer, over, message, ledger) == (over, [], ())
    (ending,) = endings(work)
    assert isinstance(ending, Abort) and ending.error.code == "PFDS-004"
    _, _, work = give(
        peer,
        give(peer, state, PFDSStudyEnd(study=peer.study))[0],
        before(peer, SharedModel)[1],
        ledger,
    )
    assert isinstance(endings(work)[0], Finish), "the model may come after the end"
    assert not ledger.entries


# Ledgers.


def test_peer_aborts_if_the_ledger_refuses() -> None:
    peer = get_peer()
    ledger = MemoryLedger(limit=1.9 * peer.price("tables").epsilon)
    state, boxes = before(peer, SumBoxes)
    _, sent, work = give(peer, state, boxes, ledger)
    assert sent == [] and [type(one) for one in endings(work)] == [Abort] and spent(ledger) == 0
    refused, sent, work = give(
        peer, state.replace(asked=("tables",)), Refused("tables", BudgetError("BUDGET-002", "No."))
    )
    assert sent == [] and refused.asked == () and isinstance(work[0], Abort)


def test_start_and_tick_without_ask_do_nothing() -> None:
    peer = get_peer()
    for given in (Started(), Tick()):
        assert give(peer, peer.initial_state(), given) == (peer.initial_state(), [], ())


@pytest.mark.parametrize("kind", [PFDSAsk, SumKeyList, SumBoxes, SharedModel])
def test_peer_rejects_or_ignores_garbage(kind: type[Message]) -> None:
    peer = get_peer()
    state, message = before(peer, kind)
    assert survives_garbage(peer, [state], [message]) > 0


def test_asks_contain_the_script_state_in_order_of_rounds() -> None:
    peer = get_peer()
    assert isinstance(before(peer, PFDSAsk)[1].course, PFDSScriptState)
    assert [before(peer, PFDSAsk, i)[1].round for i in range(4)] == [0, 1, 2, 3]
