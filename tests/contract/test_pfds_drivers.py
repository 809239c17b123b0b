"""PFDS plus on every driver: in one process, and over good and failing networks.

Every message that leaves is priced and leaves once. Enough holders make a model; fewer end the
study with a reason. Participants with ``--read-only`` get the result too.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.clock import ManualClock
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import BudgetError, LocalProtocolError, ShoalError
from shoal.messages.base import Array, Message
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Abort,
    Effects,
    Host,
    Input,
    Ledger,
    MemoryLedger,
    ProtocolOutcome,
    Release,
    Send,
    run_local,
)
from shoal.protocols.pfds import tables
from shoal.protocols.pfds.aggregator import (
    PFDSResult,
    PFDSSecureSumAggregatorState,
    SecureSumAggregator,
)
from shoal.protocols.pfds.messages import (
    HolderTables,
    PFDSAsk,
    PFDSScriptState,
    SharedModel,
    encode_floats,
)
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.params import Ints, PFDSRows
from shoal.protocols.pfds.peer import LocalPeer, SecureSumPeer
from shoal.protocols.pfds.personal_model import PersonalModel
from shoal.protocols.pfds.population import simulate
from shoal.protocols.secagg.messages import SumAgreed, SumKeys, SumMasked, SumShares, SumUnmask
from shoal.simulation.network import Faults
from tests.support.machines import HEAVY, LOSSY, Run, over, spent
from tests.support.pfds import (
    STUDIES,
    SUMMED,
    BareSums,
    BareTables,
    N,
    answers_sent,
    check,
    check_complete,
    cost,
    list_questions,
    make,
    parted,
    pooled_rows,
    same_model,
    saved,
    sharers,
)

ROUGH = replace(HEAVY, crash=0.02)
DRIVERS = {
    "local": run_local,
    "lossy network": over(LOSSY),
    "crashing network": over(ROUGH),
    "absent peers": over(
        Faults(max_delay=50, absences={"peer-1": (200, 260_000), "peer-4": (20_000, 30_000)})
    ),
    "forgetful peers": over(Faults(loss=0.1, max_delay=900, crash=0.005, amnesia=1.0)),
}
GOOD = ("local", "lossy network")
PATIENCE = timedelta(seconds=90)

Played = tuple[ProtocolOutcome, Any, dict[str, Any], dict[str, MemoryLedger]]


def play(run: Run, name: str, seed: int, **changes: Any) -> Played:
    aggregator, peers = make(name, **{"phase_timeout": PATIENCE, **changes.get("options", {})})
    peers |= changes.get("peers", {})
    ledgers = changes.get("ledgers") or {name: MemoryLedger() for name in peers}
    return run(aggregator, peers, SeededEntropy(seed), ledgers=ledgers), aggregator, peers, ledgers


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("name", STUDIES)
def test_pfds_run_keeps_every_invariant(driver: str, name: str) -> None:
    outcome, aggregator, peers, ledgers = play(DRIVERS[driver], name, 1)
    check(peers, outcome, ledgers)
    if driver in GOOD:
        check_complete(aggregator, peers, outcome, ledgers)
        (paid,) = {spent(ledgers[name]) for name in sharers(peers)}
        assert paid == cost(peers["peer-0"], list_questions(aggregator.params)), (
            "the plain sum of all events"
        )
        assert aggregator.params.delta or paid == grains_up(aggregator.params.epsilon), (
            "which is what the label says"
        )
    elif "forgetful" not in driver:
        assert not outcome.rejected, "honest machines reject nothing of each other"
    assert (AGGREGATOR in outcome.results) != (AGGREGATOR in outcome.aborted)
    if driver == "crashing network":
        assert AGGREGATOR in outcome.results, (
            "a machine that comes back with its state is not missed"
        )


@pytest.mark.parametrize("name", STUDIES)
def test_pfds_run_survives_crash_before_every_step(name: str) -> None:
    """Check that the saved state is complete.

    Sealed boxes are never the same twice, but the result is.
    """
    found = []
    for kinds in ({}, saved(name)):
        outcome, aggregator, peers, ledgers = play(run_local, name, 4, options=kinds)
        found.append(check_complete(aggregator, peers, outcome, ledgers))
    first, again = found
    assert all(
        np.array_equal(one, other) for one, other in zip(first.answers, again.answers, strict=True)
    )
    assert same_model(first.model, again.model)


@pytest.mark.parametrize("name", STUDIES)
def test_pfds_noiseless_messages_and_population_learn_same_model(name: str) -> None:
    changes = {"epsilon": math.inf, "delta": 0.0}
    params = replace(STUDIES[name], **changes)
    kind = BareTables if name == "local" else BareSums
    outcome, aggregator, _, _ = play(run_local, name, 1, options={"changes": changes, "peer": kind})
    published = outcome.results[AGGREGATOR]
    assert isinstance(published, PFDSResult)
    learned = simulate(params, pooled_rows(params), aggregator.study, SeededEntropy(1))
    assert all(
        np.array_equal(one, other)
        for one, other in zip(published.answers, learned.answers, strict=True)
    )
    assert same_model(published.model, learned.model)


@pytest.mark.parametrize("name", STUDIES)
def test_pfds_holders_get_same_shared_model_and_personal_models(name: str) -> None:
    outcome, aggregator, peers, _ = play(DRIVERS["lossy network"], name, 2)
    published = outcome.results[AGGREGATOR]
    assert isinstance(published, PFDSResult)
    pooled = outcome.results["reader-1"]
    assert isinstance(pooled, PooledModel) and same_model(pooled, published.model)
    (model,) = {outcome.states[one].published.weights.data for one in peers}
    assert model == encode_floats(published.model.weights.ravel()).data
    cells = pooled_rows(aggregator.params).cells
    scores = [outcome.results[one].compute_scores(cells) for one in [*sharers(peers), "reader-0"]]  # type: ignore[attr-defined]
    assert len({score.tobytes() for score in scores}) == N + 1


# Participants that only read.


@pytest.mark.parametrize("driver", [*GOOD, "crashing network", "absent peers"])
@pytest.mark.parametrize("name", ["local", "gaussian"])
def test_pfds_read_only_peer_finishes_and_spends_nothing(driver: str, name: str) -> None:
    outcome, _, _, ledgers = play(DRIVERS[driver], name, 3)
    assert isinstance(outcome.results["reader-0"], PersonalModel) and isinstance(
        outcome.results["reader-1"], PooledModel
    )
    assert not ledgers["reader-0"].entries and not ledgers["reader-1"].entries
    assert not [sent for sent in outcome.sent if sent.sender.startswith("reader-")]


# Dropouts in every phase.


def make_leaving_peer(kind: type[Any], leaves_at: type[Message]) -> type[Any]:
    """Return a peer class that vanishes when it is about to send a message of a kind."""

    class Leaving(kind):  # type: ignore[misc]
        def step(
            self, state: Any, given: Input, now: datetime, entropy: Entropy
        ) -> tuple[Any, Effects]:
            state, effects = super().step(state, given, now, entropy)
            if any(
                isinstance(effect, Send | Release) and isinstance(effect.message, leaves_at)
                for effect in effects
            ):
                return state, (Abort(LocalProtocolError("PROTO-001", "The power went out.")),)
            return state, effects

    return Leaving


def run_without(
    name: str, gone: dict[int, type[Message]], run: Run = run_local, **options: Any
) -> Played:
    _, peers = make(name, **options)
    swapped = {}
    for i, at in gone.items():
        peer = peers[f"peer-{i}"]
        kind = make_leaving_peer(type(peer), at)
        first = (peer.params, peer.study, i) if name == "local" else (peer.script, peer.member)
        swapped[f"peer-{i}"] = kind(*first, peer._rows.reveal())
    outcome, aggregator, peers, ledgers = play(run, name, 1, peers=swapped, options=options)
    check(peers, outcome, ledgers)
    for i in gone:
        assert outcome.aborted.pop(f"peer-{i}").what == "The power went out."
    return outcome, aggregator, peers, ledgers


SUMS = [SumKeys, SumShares, SumMasked, SumAgreed, SumUnmask]


@pytest.mark.parametrize(
    "name, kind",
    [("sums", kind) for kind in SUMS]
    + [("gaussian", SumMasked), ("three", SumKeys), ("local", HolderTables)],
)
def test_pfds_tolerates_declared_dropouts_and_no_more(name: str, kind: type[Message]) -> None:
    outcome, aggregator, _, ledgers = run_without(name, {1: kind})
    published = outcome.results[AGGREGATOR]
    assert isinstance(published, PFDSResult) and not outcome.aborted
    had_left = kind in (SumAgreed, SumUnmask)
    n_rounds, questions = len(published.answers), list_questions(aggregator.params)
    if name == "local":
        assert published.n_answering == (4,)
    else:
        assert published.n_answering == (5 if had_left else 4, *[4] * (n_rounds - 1))
    ((holder, reason),) = [(left.holder, left.reason) for left in published.left_out]
    assert holder == "peer-1" and (
        name == "local" or reason == f"missing in sums: {', '.join(questions[had_left:])}"
    )
    assert spent(ledgers["peer-1"]) == (
        grains_up(make(name)[1]["peer-1"].price(questions[0]).epsilon) if had_left else 0
    )

    outcome, _, _, ledgers = run_without(name, {1: kind, 3: SUMS[0] if name != "local" else kind})
    assert AGGREGATOR not in outcome.results
    assert outcome.aborted[AGGREGATOR].code in ("SUM-103", "PFDS-004")
    assert {len(ledger.entries) for ledger in ledgers.values()} <= {0, 1}, "nothing more is asked"


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_pfds_with_ten_holders_and_all_allowed_dropouts_learns(delta: float) -> None:
    """Let N - minimum holders vanish, each in another phase or round.

    Messages that they sent are spent, and the model is that of the others.
    """
    changes = {"n_holders": 10, "minimum": 7, "max_colluders": 2, "delta": delta}
    gone: dict[int, type[Message]] = {2: SumShares, 5: SumMasked, 9: SumUnmask}
    outcome, _, peers, ledgers = run_without("sums", gone, changes=changes)
    published = outcome.results[AGGREGATOR]
    assert (
        isinstance(published, PFDSResult)
        and published.n_answering[0] == 8
        and set(published.n_answering[1:]) == {7}
    )
    assert [left.holder for left in published.left_out] == ["peer-2", "peer-5", "peer-9"]
    assert all(
        isinstance(outcome.results[one], PersonalModel)
        for one in sharers(peers)
        if int(one[5:]) not in gone
    )
    assert [len(ledgers[f"peer-{i}"].entries) for i in gone] == [0, 1, 1]
    outcome, *_ = run_without("sums", {**gone, 0: SumKeys}, changes=changes)
    assert outcome.aborted[AGGREGATOR].code == "SUM-103"


def test_pfds_holder_absent_for_a_while_is_in_sums_before_and_after() -> None:
    faults = Faults(max_delay=50, absences={"peer-1": (400, 8_000)})
    outcome, _, peers, ledgers = play(
        over(faults), "sums", 2, options={"phase_timeout": timedelta(seconds=5)}
    )
    check(peers, outcome, ledgers)
    published = outcome.results[AGGREGATOR]
    assert isinstance(published, PFDSResult)
    assert min(published.n_answering) == 4 and max(published.n_answering) == 5
    assert [left.holder for left in published.left_out] == ["peer-1"]
    assert isinstance(outcome.results["peer-1"], PersonalModel), "it has the model too"
    assert len(ledgers["peer-1"].entries) < len(ledgers["peer-0"].entries)


@pytest.mark.parametrize("driver", GOOD)
@pytest.mark.parametrize(
    "name, kind", [("sums", SumMasked), ("three", SumUnmask), ("local", HolderTables)]
)
def test_pfds_aborted_study_is_aborted_by_all(driver: str, name: str, kind: type[Message]) -> None:
    outcome, _, _, _ = run_without(name, {1: kind, 2: kind}, DRIVERS[driver])
    reason = outcome.aborted[AGGREGATOR].what
    others = {"peer-0", "peer-3", "peer-4", "reader-0", "reader-1"}
    assert set(outcome.aborted) == {AGGREGATOR, *others} and not outcome.results
    for one in others:
        assert outcome.aborted[one].code == "PFDS-004" and reason in outcome.aborted[one].what
        if name != "local" and one.startswith("peer-"):
            member = outcome.states[one].sitting
            assert member is None or member.own == member.mask == member.box == b""


# Holders and aggregators that break the rules.


class Wrong(LocalPeer):
    """A holder that sends tables of another size."""

    def answer(self, state: Any, question: str, entropy: Entropy) -> Message:
        return HolderTables(study=self.study, counts=Array.from_values(np.zeros(3, np.int64)))


class Absurd(LocalPeer):
    """A holder that sends counts far too large."""

    def answer(self, state: Any, question: str, entropy: Entropy) -> Message:
        honest = super().answer(state, question, entropy)
        assert isinstance(honest, HolderTables)
        return honest.replace(counts=Array.from_values(np.full(honest.counts.count, 1 << 61)))


@pytest.mark.parametrize("driver", GOOD)
@pytest.mark.parametrize("kind, code", [(Wrong, "MSG-005"), (Absurd, "PFDS-001")])
def test_pfds_holder_with_unusable_tables_is_named_and_left_out(
    driver: str, kind: type[LocalPeer], code: str
) -> None:
    _, peers = make("local")
    honest = peers["peer-2"]
    bad = kind(honest.params, honest.study, 2, honest._rows.reveal())
    outcome, _, peers, ledgers = play(DRIVERS[driver], "local", 1, peers={"peer-2": bad})
    check(peers, outcome, ledgers)
    assert {(one.by, one.sender, one.error.code) for one in outcome.rejected} == {
        (AGGREGATOR, "peer-2", code)
    }
    published = outcome.results[AGGREGATOR]
    assert isinstance(published, PFDSResult) and published.n_answering == (4,)
    assert [(left.holder, left.reason) for left in published.left_out] == [
        ("peer-2", "no usable tables arrived in time")
    ]
    assert isinstance(outcome.results["reader-0"], PersonalModel)


class Large(SecureSumPeer):
    """A holder that adds the largest numbers that a sum can take."""

    def draw_noisy_answer(
        self, script_state: PFDSScriptState, rows: PFDSRows, entropy: Entropy
    ) -> Ints:
        return np.full(
            len(super().draw_noisy_answer(script_state, rows, entropy)), (1 << 62) // N // 2
        )


@pytest.mark.parametrize("name", SUMMED)
def test_pfds_holder_with_large_numbers_spoils_only_the_model(name: str) -> None:
    _, peers = make(name)
    honest = peers["peer-2"]
    bad = Large(honest.script, honest.member, honest._rows.reveal())
    outcome, aggregator, peers, ledgers = play(run_local, name, 1, peers={"peer-2": bad})
    published = check_complete(aggregator, peers, outcome, ledgers)
    assert np.isfinite(published.model.weights).all()


class Insatiable(SecureSumAggregator):
    """An aggregator that repeats each question with other weights or a later round number."""

    def step(
        self, state: PFDSSecureSumAggregatorState, given: Input, now: datetime, entropy: Entropy
    ) -> tuple[PFDSSecureSumAggregatorState, Effects]:
        state, effects = super().step(state, given, now, entropy)
        more = []
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, PFDSAsk):
                state_of_script = effect.message.course.replace(
                    intercept=effect.message.course.intercept + 1
                )
                other = effect.message.replace(course=state_of_script)
                more += [
                    replace(effect, message=other),
                    replace(effect, message=other.replace(round=other.round + 1)),
                ]
        return state, (*effects, *more)


def test_pfds_peers_reject_repeated_question_with_other_weights() -> None:
    outcome, aggregator, peers, ledgers = play(
        run_local, "sums", 1, options={"aggregator": Insatiable}
    )
    check(peers, outcome, ledgers)
    codes = {one.error.code for one in outcome.rejected}
    assert codes == {"PFDS-003"} and {one.sender for one in outcome.rejected} == {AGGREGATOR}
    assert len(outcome.rejected) == 2 * N * len(list_questions(aggregator.params))
    assert all(
        spent(ledgers[one]) == grains_up(aggregator.params.epsilon) for one in sharers(peers)
    )


class Misleading(SecureSumAggregator):
    """An aggregator that publishes a model of NaN."""

    def step(
        self, state: PFDSSecureSumAggregatorState, given: Input, now: datetime, entropy: Entropy
    ) -> tuple[PFDSSecureSumAggregatorState, Effects]:
        state, effects = super().step(state, given, now, entropy)
        nothing = encode_floats(np.full(self.params.n_cells, np.nan))
        swapped = [
            replace(one, message=one.message.replace(weights=nothing))
            if isinstance(getattr(one, "message", None), SharedModel)
            else one
            for one in effects
        ]
        return state, tuple(swapped)


def test_pfds_peers_reject_model_of_nan() -> None:
    outcome, _, peers, ledgers = play(run_local, "sums", 1, options={"aggregator": Misleading})
    check(peers, outcome, ledgers)
    assert {one.by for one in outcome.rejected} == set(peers) and {
        one.error.code for one in outcome.rejected
    } == {"MSG-005"}
    assert set(outcome.results) == {AGGREGATOR}


# Ledgers.


@pytest.mark.parametrize("name", ["sums", "gaussian"])
def test_pfds_holder_stops_at_limit_of_ledger_and_others_continue(
    name: str,
) -> None:
    peer = make(name)[1]["peer-4"]
    first, second = (peer.price(question).epsilon for question in list_questions(STUDIES[name])[:2])
    limit = 2 * (first + second / 2)
    ledgers = {one: MemoryLedger(limit=limit if one == "peer-4" else None) for one in make(name)[1]}
    outcome, _, peers, _ = play(run_local, name, 3, ledgers=ledgers)
    check(peers, outcome, ledgers)
    assert isinstance(outcome.aborted.pop("peer-4"), BudgetError)
    published = outcome.results[AGGREGATOR]
    assert isinstance(published, PFDSResult) and not outcome.aborted
    assert published.n_answering == (5, 4, 4, 4)
    assert [left.holder for left in published.left_out] == ["peer-4"]
    assert spent(ledgers["peer-4"]) == grains_up(first)


def test_pfds_holder_is_left_out_if_ledger_refuses_tables() -> None:
    ledgers = {
        one: MemoryLedger(limit=1.0 if one == "peer-4" else None) for one in make("local")[1]
    }
    outcome, _, peers, _ = play(run_local, "local", 3, ledgers=ledgers)
    check(peers, outcome, ledgers)
    assert isinstance(outcome.aborted.pop("peer-4"), BudgetError) and not outcome.aborted
    published = outcome.results[AGGREGATOR]
    assert isinstance(published, PFDSResult) and [left.holder for left in published.left_out] == [
        "peer-4"
    ]
    assert spent(ledgers["peer-4"]) == 0


class LoweredLedger(MemoryLedger):
    """A ledger with a limit that is lowered between storing and sending the answer."""

    question = "tables"

    def mark_sending(self, study: str, question: str) -> bytes:
        if question == self.question and self.entries[study, question].state is ReleaseState.STORED:  # type: ignore[index]
            raise BudgetError("BUDGET-002", "The limit was lowered.")
        return super().mark_sending(study, question)


class LoweredLater(LoweredLedger):
    question = "calibration"


@pytest.mark.parametrize("driver", GOOD)
@pytest.mark.parametrize(
    "name, kind, left", [("local", LoweredLedger, []), ("sums", LoweredLater, ["tables"])]
)
def test_pfds_answer_stays_if_ledger_refuses_at_sending(
    driver: str, name: str, kind: type[MemoryLedger], left: list[str]
) -> None:
    ledgers = {one: kind() if one == "peer-2" else MemoryLedger() for one in make(name)[1]}
    outcome, aggregator, _, _ = play(DRIVERS[driver], name, 1, ledgers=ledgers)
    assert [
        question
        for sender, question in answers_sent(outcome, aggregator.study)
        if sender == "peer-2"
    ] == left
    assert isinstance(outcome.aborted["peer-2"], BudgetError)
    published = outcome.results[AGGREGATOR]
    assert isinstance(published, PFDSResult) and [one.holder for one in published.left_out] == [
        "peer-2"
    ]


@pytest.mark.parametrize("name", ["local", "gaussian"])
def test_pfds_runs_with_ledger_file(name: str, tmp_path: Path) -> None:
    aggregator, peers = make(name, readers=(), changes={"epsilon": 1.0})
    ledgers: dict[str, Ledger] = {
        one: LedgerFile(tmp_path / f"{one}.db", ManualClock()) for one in peers
    }
    outcome = DRIVERS["lossy network"](aggregator, peers, SeededEntropy(8), ledgers=ledgers)
    assert isinstance(outcome.results[AGGREGATOR], PFDSResult)
    left = answers_sent(outcome, aggregator.study)
    for one, ledger in ledgers.items():
        assert isinstance(ledger, LedgerFile)
        stored = {
            (entry.state.value, ledger.read_payload(entry.study, entry.release.question))
            for entry in ledger.entries()
        }
        assert stored == {
            ("sent", payload)
            for (sender, _), payloads in left.items()
            if sender == one
            for payload in payloads
        }
        ledger.close()


# Mutants: each breaks one invariant, and the suite must notice.


def make_mutant(name: str, how: str) -> type[Any]:
    class Mutant(LocalPeer if name == "local" else SecureSumPeer):  # type: ignore[misc]
        def ask(self, state: Any, question: str) -> tuple[Any, Effects]:
            if how == "sends what it would release as if it were free":
                return state, (Send(AGGREGATOR, self.answer(state, question, SeededEntropy(1))),)
            if how == "draws without asking its ledger":
                return state, (Release(question, self.answer(state, question, SeededEntropy(1))),)
            state, effects = super().ask(state, question)
            if how == "reserves half of the price":
                effects = tuple(
                    replace(one, event=replace(one.event, epsilon=one.event.epsilon / 2))
                    for one in effects
                )
            return state, effects

    return Mutant


@pytest.mark.parametrize(
    "how", ["sends what it would release as if it were free", "draws without asking its ledger"]
)
@pytest.mark.parametrize("name", ["sums", "local"])
def test_pfds_answer_without_ledger_entry_is_not_sent(name: str, how: str) -> None:
    outcome, aggregator, peers, ledgers = play(
        run_local, name, 0, options={"peer": make_mutant(name, how)}
    )
    assert {outcome.aborted[one].code for one in sharers(peers)} == {"PROTO-001"}
    assert answers_sent(outcome, aggregator.study) == {}
    assert {spent(ledger) for ledger in ledgers.values()} == {0}


class Longer(SecureSumPeer):
    """A mutant that answers with one number too many."""

    def draw_noisy_answer(
        self, script_state: PFDSScriptState, rows: PFDSRows, entropy: Entropy
    ) -> Ints:
        return np.append(super().draw_noisy_answer(script_state, rows, entropy), 0)


class Forgetful(SecureSumPeer):
    """A mutant that omits its noise."""

    def draw_noisy_answer(
        self, script_state: PFDSScriptState, rows: PFDSRows, entropy: Entropy
    ) -> Ints:
        return self.script.count(script_state, rows)


def is_caught(name: str, kind: type[Any], run: Run = run_local) -> bool:
    try:
        outcome, aggregator, peers, ledgers = play(run, name, 1, options={"peer": kind})
        check_complete(aggregator, peers, outcome, ledgers)
    except (AssertionError, ShoalError):
        return True
    return False


def test_pfds_suite_catches_mutants() -> None:
    for name in ("sums", "local"):
        assert is_caught(name, make_mutant(name, "reserves half of the price"))
        assert not is_caught(name, make_mutant(name, "is honest"))
    assert is_caught("sums", Longer)
    outcome, *_ = play(run_local, "sums", 1, options={"peer": Forgetful})
    published = outcome.results[AGGREGATOR]
    assert isinstance(published, PFDSResult)
    total = sum(own.sides.sum() for own in parted(STUDIES["sums"], pooled_rows(STUDIES["sums"])))
    assert published.answers[0].sum() == total * 5, "sums without noise show"
    honest, *_ = play(run_local, "sums", 1)
    assert honest.results[AGGREGATOR].answers[0].sum() != total * 5  # type: ignore[attr-defined]


def test_pfds_suite_catches_driver_without_submission_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Host, "_index_submission", lambda *_: None)
    assert is_caught("local", LocalPeer, DRIVERS["lossy network"])
    assert is_caught("sums", SecureSumPeer, DRIVERS["lossy network"])


class Repeating(SecureSumPeer):
    """A mutant that forgets its answers."""

    def on_message(
        self, state: Any, message: Message, now: datetime, entropy: Entropy
    ) -> tuple[Any, Effects]:
        return super().on_message(state.replace(asked=(), answered=()), message, now, entropy)


def test_pfds_ledger_protects_peer_that_forgets_its_answers() -> None:
    outcome, _, peers, ledgers = play(
        DRIVERS["lossy network"], "sums", 1, options={"peer": Repeating}
    )
    check(peers, outcome, ledgers)


def test_pfds_study_without_absences_never_waits() -> None:
    for name in STUDIES:
        outcome, *_ = play(run_local, name, 1)
        assert max(sent.at for sent in outcome.sent) == START


def test_pfds_trust_local_publishes_assignment_of_tables() -> None:
    aggregator, peers = make("local")
    for i, name in enumerate(sharers(peers)):
        assert peers[name].attributes == tables.assign_attributes(
            aggregator.params, aggregator.study, i
        )
