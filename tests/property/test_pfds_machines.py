"""PFDS plus whatever is asked and sent, and however bad the network."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hostile import hostile
from machine_runs import give, spent
from pfds_cases import STUDIES, SUMMED, check, cost, logged, make, questions_of, sharers
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import AGGREGATOR, START, MemoryLedger, Received, Started
from shoal.protocols.pfds.home import Home
from shoal.protocols.pfds.messages import Ask, Ended, SharedModel, Tables, floats_in
from shoal.protocols.pfds.publishing import Published
from shoal.protocols.pfds.sums import Course
from shoal.protocols.sums.messages import SumBoxes
from shoal.sim.network import Faults, run_network
from toy.any_faults import any_faults

NAMES = st.sampled_from(sorted(STUDIES))
some_int = st.integers(-2, 6) | st.sampled_from([(1 << 63) - 1, -(1 << 63), 1 << 39, -(1 << 39), 1 << 20])


@st.composite
def courses(draw: st.DrawFn, n_cells: int, honest: list[Course]) -> Course:
    """A course that answers lead to, with anything in it changed."""
    course = draw(st.sampled_from(honest))
    for part in draw(st.lists(st.sampled_from(["step", "weights", "intercept", "direction", "reaches"]), max_size=2)):
        if part in ("weights", "direction"):
            size = draw(st.sampled_from([n_cells, n_cells, n_cells, 0, n_cells + 1]))
            value: Any = Array.of(np.full(size, draw(some_int), np.int64))
        else:
            value = (draw(some_int), draw(some_int)) if part == "reaches" else draw(some_int)
        course = course.replace(**{part: value})
    return course


def messages_to(machine: Any) -> list[Message]:
    """All that was sent to a machine in an honest run."""
    return [given.message for _, given in machine.log if isinstance(given, Received)]


@hostile(60)
@given(st.data(), st.sampled_from(SUMMED), st.integers(0, 4), st.integers(0, 2**32))
def test_a_holder_answers_each_question_once_at_its_price_whatever_it_is_asked(data: st.DataObject, name: str, i: int, seed: int) -> None:
    """Asks that were made up, and honest messages in any order, doubled and left out; the state may be lost, the ledger never.

    It begins anywhere in an honest run, since what the others send is made for the keys of that run.
    """
    peer, ledger = logged(name)[1][f"peer-{i}"], MemoryLedger()
    honest = messages_to(peer)
    grown = [message.course for message in honest if isinstance(message, Ask)]
    ripe = [place for place, message in enumerate(honest) if isinstance(message, SumBoxes)]
    at = data.draw(st.sampled_from(ripe) | st.integers(0, len(honest) - 1))
    state = next(state for state, given in peer.log if isinstance(given, Received) and given.message is honest[at])
    state, at = state.replace(asked=(), answered=()), at - 1
    left: dict[str, set[bytes]] = {}
    for number in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.integers(0, 9))
        if step < 6:
            message = honest[at := min(at + 1, len(honest) - 1)] if step else honest[at := data.draw(st.integers(0, len(honest) - 1))]
        elif step < 9:
            course = data.draw(courses(peer.params.n_cells, grown))
            message = Ask(study=peer.study, round=data.draw(st.sampled_from([max(0, course.step), 0, 3])), course=course)
        else:
            state = peer.initial()
            continue
        try:
            state, _, work = give(peer, state, message, ledger, seed + number)
        except RemoteProtocolError:
            continue
        state = load(dump(state), type(state))
        for item in work:
            if getattr(item, "question", None) is not None:
                left.setdefault(item.question, set()).add(item.payload)  # type: ignore[union-attr]
                ledger.mark_sending(peer.study.hex(), item.question)  # type: ignore[union-attr]
    assert all(len(payloads) == 1 for payloads in left.values())
    assert {question for _, question in ledger.entries} == set(left) <= set(peer.script.prices)
    assert spent(ledger) == cost(peer, left)
    assert peer.params.delta or spent(ledger) <= grains_up(peer.params.epsilon)


@hostile(40)
@given(st.data(), st.integers(0, 4), st.integers(0, 2**32))
def test_tables_leave_once_whatever_is_sent(data: st.DataObject, i: int, seed: int) -> None:
    peer, ledger = logged("local")[1][f"peer-{i}"], MemoryLedger()
    honest = messages_to(peer)
    state, left = peer.initial(), set()
    for number in range(data.draw(st.integers(1, 12))):
        given: Any = data.draw(
            st.sampled_from([Started(), *honest, Ended(study=peer.study, reason="No."), Ask(study=peer.study, round=0, course=_START)])
        )
        state = peer.initial() if data.draw(st.integers(0, 5)) == 0 else state
        try:
            state, sent, _ = give(peer, state, given, ledger, seed + number)
        except RemoteProtocolError:
            continue
        left |= {message.counts.data for message in sent if isinstance(message, Tables)}
    assert len(left) <= 1 and len(ledger.entries) == len(left)


_START = logged("sums")[0].script.start


@hostile(60)
@given(st.data(), NAMES, st.integers(0, 2**32))
def test_an_aggregator_bears_whatever_holders_send(data: st.DataObject, name: str, seed: int) -> None:
    aggregator, peers, _ = logged(name)
    told = [(given.sender, given.message) for _, given in aggregator.log if isinstance(given, Received)]
    study = aggregator.study
    state = aggregator.started(aggregator.initial(), START, SeededEntropy(1))[0]
    now, at = START, -1
    for number in range(data.draw(st.integers(1, 40))):
        kind = data.draw(st.integers(0, 9))
        entropy = SeededEntropy(seed).spawn(number)
        if kind == 9:
            now += timedelta(seconds=data.draw(st.integers(0, 50)))
            state, _ = aggregator.ticked(state, now, entropy)
            continue
        sender, message = told[at := min(at + 1, len(told) - 1)] if kind < 7 else data.draw(st.sampled_from(told))
        if kind == 8:
            nothing = floats_in(np.zeros(1))
            message = data.draw(
                st.sampled_from(
                    [
                        Tables(study=study, counts=Array.of(np.full(data.draw(st.integers(0, 40)), data.draw(some_int)))),
                        SharedModel(study=study, weights=nothing, intercepts=nothing, variances=nothing, shares=nothing),
                        Ended(study=study),
                    ]
                )
            )
            sender = data.draw(st.sampled_from([*peers, "stranger"]))
        try:
            state, _ = aggregator.received(state, sender, message, now, entropy)
        except RemoteProtocolError:
            continue
        state = load(dump(state), type(state))
        if name != "local":
            assert len(state.answers) == len(state.survivors)
            assert all(len(there) >= aggregator.params.minimum for there in state.survivors)


@hostile(12)
@given(any_faults(most_lost=0.4), NAMES, st.integers(0, 2**32), st.sampled_from([5, 60, 3600]))
def test_promises_are_kept_on_any_network(faults: Faults, name: str, seed: int, patience: int) -> None:
    aggregator, peers = make(name, patience=timedelta(seconds=patience))
    ledgers = {one: MemoryLedger() for one in peers}
    outcome = run_network(aggregator, peers, SeededEntropy(seed), faults, ledgers=ledgers)
    check(peers, outcome, ledgers)
    assert (AGGREGATOR in outcome.results) != (AGGREGATOR in outcome.aborted)
    published = outcome.results.get(AGGREGATOR)
    if isinstance(published, Published):
        assert min(published.n_answering) >= aggregator.params.minimum
        assert len(published.n_answering) == len(questions_of(aggregator.params))
        assert {left.holder for left in published.left_out} < set(sharers(peers))
        if not faults.crash and not faults.absences:
            assert all(isinstance(outcome.results[one], Home) for one in sharers(peers))
