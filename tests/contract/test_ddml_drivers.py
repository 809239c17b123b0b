"""DDML on every driver: in one process, over a good network, and over networks that fail in every way. No update counts twice, no ledger
counts too little, and the model learns."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ddml_cases import STUDIES, STUDY, check, check_complete, make, people, price_of, taken, updates_sent
from machine_runs import spent
from networks import HEAVY, LOSSY, Run, over
from shoal.clock import ManualClock
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import BudgetError, ShoalError
from shoal.messages.base import Message
from shoal.messages.codec import dump
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.records import State
from shoal.protocols.base import AGGREGATOR, Effects, Host, Ledger, MemoryLedger, Outcome, Release, Send, run_local
from shoal.protocols.ddml.aggregator import DDMLAggregator, Keeping, Learned
from shoal.protocols.ddml.messages import Instance
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.peer import DDMLPeer, Drawing
from shoal.protocols.ddml.spam import Filter, calibrate
from shoal.sim.network import Faults

AMNESIA = replace(HEAVY, amnesia=0.8, crash=0.02)
"""Milder: a peer that forgot draws again, and where it falls more often than it is answered there is no end."""

BUSY = Faults(loss=0.05, duplicate=0.1, min_delay=5, max_delay=20_000, crash=0.002, amnesia=0.3, downtime=3_000, retry=30_000)


DRIVERS = {
    "local": run_local,
    "good network": over(Faults()),
    "lossy network": over(LOSSY),
    "crashing network": over(HEAVY),
    "absent peers": over(replace(HEAVY, absences={"peer-1": (1, 25_000), "peer-2": (4_000, 9_000)})),
    "forgetful peers": over(AMNESIA),
}


@pytest.fixture(params=DRIVERS)
def run(request: pytest.FixtureRequest) -> Run:
    return DRIVERS[request.param]


def play(run: Run, params: Params, seed: int, n: int = 6, **changes: Any) -> tuple[Outcome, dict[str, MemoryLedger]]:
    aggregator, peers = make(params, n, **changes.get("options", {}))
    peers |= changes.get("peers", {})
    ledgers = changes.get("ledgers") or {name: MemoryLedger() for name in peers}
    return run(changes.get("aggregator", aggregator), peers, SeededEntropy(seed), ledgers=ledgers), ledgers


@pytest.mark.parametrize("kind", ["closest", "laplace", "weight", "decay"])
def test_every_promise_is_kept(run: Run, kind: str) -> None:
    for seed in range(2):
        outcome, ledgers = play(run, STUDIES[kind], seed)
        check_complete(STUDIES[kind], outcome, ledgers)


def test_the_same_seed_gives_the_same_run(run: Run) -> None:
    first, again, other = (play(run, STUDIES["weight"], seed)[0] for seed in (5, 5, 6))
    assert (first.sent, first.states) == (again.sent, again.states)
    assert first.sent != other.sent


def test_bad_networks_really_are_bad() -> None:
    """Bytes are sent again, draws are answered more than once, and updates come back after others were merged."""
    retries = answers = 0
    for seed in range(6):
        outcome, _ = play(DRIVERS["forgetful peers"], STUDIES["laplace"], seed)
        retries += len(outcome.sent) - len({(sent.sender, sent.to, sent.payload) for sent in outcome.sent})
        answers += sum(sent.sender == AGGREGATOR for sent in outcome.sent)
    assert retries > 50
    assert answers > 6 * 12


@pytest.mark.parametrize("driver", ["local", "busy network"])
def test_a_strong_signal_is_learned_by_five_hundred_devices(driver: str) -> None:
    params = STUDIES["closest"]
    outcome, ledgers = play(run_local if driver == "local" else over(BUSY), params, 2, n=500)
    check_complete(params, outcome, ledgers)
    learned = outcome.results[AGGREGATOR]
    assert isinstance(learned, Learned) and learned.n_merged == 1000
    columns, labels = people(params.schema, 3000, 9)
    assert (learned.model.decide(columns) == labels).mean() > 0.85


def test_the_filter_for_spam_lets_honest_updates_in() -> None:
    params = STUDIES["closest"]
    judge = Filter(params, calibrate(params, 50))
    outcome, ledgers = play(over(Faults(max_delay=2_000)), params, 3, n=80, options={"judge": judge})
    check_complete(params, outcome, ledgers)
    state = outcome.states[AGGREGATOR]
    assert state.n_merged > 0.9 * taken(state)


def test_a_study_that_ends_early_drops_what_comes_later_and_loses_nobody() -> None:
    params = STUDIES["weight"]
    for seed in range(4):
        for name in ("local", "crashing network"):
            outcome, ledgers = play(DRIVERS[name], params, seed, options={"n_expected": 5})
            check(params, outcome, ledgers)
            learned = outcome.results[AGGREGATOR]
            assert isinstance(learned, Learned) and learned.n_merged == 5
            assert outcome.states[AGGREGATOR].n_merged == 5


def test_a_peer_that_is_gone_for_good_is_not_waited_for_for_ever() -> None:
    params = STUDIES["laplace"]
    faults = replace(HEAVY, absences={"peer-0": (0, None), "peer-3": (3_000, None)})
    for seed in range(6):
        outcome, ledgers = play(over(faults), params, seed, options={"patience": timedelta(minutes=5)})
        check(params, outcome, ledgers)
        assert "peer-0" not in outcome.results and spent(ledgers["peer-0"]) == 0
        assert isinstance(outcome.results[AGGREGATOR], Learned)


def test_a_ledger_that_refuses_stops_its_device_at_its_limit(run: Run) -> None:
    params = STUDIES["weight"]
    limit = 2.5 * price_of(params) / 10**12
    ledgers = {f"peer-{i}": MemoryLedger(limit=limit if i == 2 else None) for i in range(6)}
    outcome, _ = play(run, params, 3, ledgers=ledgers)
    check(params, outcome, ledgers)
    assert outcome.results["peer-2"] == 2
    assert spent(ledgers["peer-2"]) == 2 * price_of(params)
    assert taken(outcome.states[AGGREGATOR]) == 6 * 3 - 1


class LoweredLedger(MemoryLedger):
    """A limit is lowered after the second update was stored, and before it is sent."""

    def mark_sending(self, study: str, question: str) -> bytes:
        if question == "update/1" and self.entries[study, question].state is State.STORED:  # type: ignore[index]
            raise BudgetError("BUDGET-002", "The limit was lowered.")
        return super().mark_sending(study, question)


def test_a_ledger_that_refuses_at_sending_stops_its_device(run: Run) -> None:
    params = STUDIES["weight"]
    ledgers = {f"peer-{i}": LoweredLedger() if i == 2 else MemoryLedger() for i in range(6)}
    for seed in range(2):
        ledgers = {name: type(ledger)() for name, ledger in ledgers.items()}
        outcome, _ = play(run, params, seed, ledgers=ledgers)
        left = [question for sender, question in updates_sent(outcome) if sender == "peer-2"]
        assert left == ["update/0"]
        assert spent(ledgers["peer-2"]) == price_of(params)
        assert not outcome.failed and not outcome.aborted and not outcome.rejected


@pytest.mark.parametrize("driver", ["local", "crashing network"])
def test_the_participants_own_ledger_file_serves_as_well(driver: str, tmp_path: Path) -> None:
    params = replace(STUDIES["closest"], epsilon=1.0)
    aggregator, peers = make(params, 3)
    ledgers: dict[str, Ledger] = {name: LedgerFile(tmp_path / f"{name}.db", ManualClock()) for name in peers}
    outcome = DRIVERS[driver](aggregator, peers, SeededEntropy(8), ledgers=ledgers)
    left = updates_sent(outcome)
    assert len(left) == 6 and all(len(payloads) == 1 for payloads in left.values())
    for name, ledger in ledgers.items():
        assert isinstance(ledger, LedgerFile)
        assert {(entry.state.value, ledger.payload(entry.study, entry.release.question)) for entry in ledger.entries()} == {
            ("sent", payload) for (sender, _), payloads in left.items() if sender == name for payload in payloads
        }
        ledger.close()


# Mutants: each breaks one promise, and the suite must notice.


class Eager(DDMLPeer):
    """Answers every instance, asked for or not, under the next question."""

    def received(self, state: Drawing, message: Message, now: datetime, entropy: Entropy) -> tuple[Drawing, Effects]:
        assert isinstance(message, Instance)
        return super().received(state, message.replace(draw=state.draw or message.draw), now, entropy)


class Unpriced(DDMLPeer):
    """Draws without asking its ledger."""

    def received(self, state: Drawing, message: Message, now: datetime, entropy: Entropy) -> tuple[Drawing, Effects]:
        assert isinstance(message, Instance)
        state = state.replace(instance=message)
        return state, (Release("update/0", self.answer(state, "update/0", entropy)),)


class Chatty(DDMLPeer):
    """Sends its update as if it were free."""

    def received(self, state: Drawing, message: Message, now: datetime, entropy: Entropy) -> tuple[Drawing, Effects]:
        assert isinstance(message, Instance)
        return state, (Send(AGGREGATOR, self.answer(state.replace(instance=message), "update/0", entropy)),)


class SameId(DDMLPeer):
    """Gives all its updates one id."""

    def answer(self, state: Drawing, question: str, entropy: Entropy) -> Message:
        return super().answer(state, question, entropy).replace(id=bytes(16))


class Twice(DDMLAggregator):
    """Merges every update two times."""

    def _merge(self, state: Keeping, weights: Any, entropy: Entropy) -> Keeping:
        return super()._merge(super()._merge(state, weights, entropy), weights, entropy)


def is_caught(run: Run, kind: type[DDMLPeer] = DDMLPeer, seeds: range = range(8), aggregator: Any = None) -> bool:
    """Whether the suite notices within a few seeds."""
    params = STUDIES["laplace"]
    for seed in seeds:
        changes = {"options": {"kind": kind}} | ({} if aggregator is None else {"aggregator": aggregator})
        try:
            outcome, ledgers = play(run, params, seed, **changes)
            check_complete(params, outcome, ledgers)
        except (AssertionError, ShoalError):
            return True
    return False


@pytest.mark.parametrize("mutant", [Unpriced, Chatty])
def test_an_update_past_the_ledger_does_not_leave(run: Run, mutant: type[DDMLPeer]) -> None:
    outcome, ledgers = play(run, STUDIES["laplace"], 0, options={"kind": mutant})
    assert {name: error.code for name, error in outcome.aborted.items() if name != AGGREGATOR} == dict.fromkeys(ledgers, "PROTO-001")
    assert updates_sent(outcome) == {}
    assert {spent(ledger) for ledger in ledgers.values()} == {0}


def test_an_id_that_is_used_twice_is_caught(run: Run) -> None:
    assert is_caught(run, SameId)


def test_an_aggregator_that_merges_twice_is_caught() -> None:
    assert is_caught(run_local, aggregator=Twice(STUDY, STUDIES["laplace"], n_expected=1 << 60))


def test_a_driver_without_an_index_counts_twice_and_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "_submission", lambda *_: None)
    assert is_caught(DRIVERS["lossy network"])


def test_a_peer_that_answers_whatever_comes_still_pays_for_all_of_it(run: Run) -> None:
    """Which instance is answered is a matter of learning; how often, and at what price, is the ledger's."""
    params = STUDIES["laplace"]
    outcome, ledgers = play(run, params, 1, options={"kind": Eager})
    check(params, outcome, ledgers)
    assert all(len(ledger.entries) <= params.n_updates for ledger in ledgers.values())


def test_the_aggregator_keeps_no_name_and_no_id() -> None:
    outcome, ledgers = play(run_local, STUDIES["laplace"], 1)
    saved = dump(outcome.states[AGGREGATOR])
    ids = [update.id for payloads in updates_sent(outcome).values() for update in payloads.values()]
    assert len(ids) == 12
    assert not any(one in saved for one in (*ids, *(name.encode() for name in ledgers)))
