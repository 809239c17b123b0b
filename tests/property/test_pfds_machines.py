"""PFDS plus for any messages and networks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import AGGREGATOR, START, MemoryLedger, Received, Started
from shoal.protocols.pfds.aggregator import PFDSResult
from shoal.protocols.pfds.messages import (
    HolderTables,
    PFDSAsk,
    PFDSScriptState,
    PFDSStudyEnd,
    SharedModel,
    encode_floats,
)
from shoal.protocols.pfds.personal_model import PersonalModel
from shoal.protocols.secagg.messages import SumBoxes
from shoal.simulation.network import Faults, run_network
from tests.support.hostile import hostile
from tests.support.machines import give, spent
from tests.support.pfds import STUDIES, SUMMED, check, cost, list_questions, logged, make, sharers
from tests.support.toy.any_faults import any_faults

NAMES = st.sampled_from(sorted(STUDIES))
some_int = st.integers(-2, 6) | st.sampled_from(
    [(1 << 63) - 1, -(1 << 63), 1 << 39, -(1 << 39), 1 << 20]
)


@st.composite
def script_states(draw: st.DrawFn, n_cells: int, honest: list[PFDSScriptState]) -> PFDSScriptState:
    """Generate a script state that answers lead to, with some fields changed."""
    script_state = draw(st.sampled_from(honest))
    for part in draw(
        st.lists(
            st.sampled_from(["step", "weights", "intercept", "direction", "reaches"]), max_size=2
        )
    ):
        if part in ("weights", "direction"):
            size = draw(st.sampled_from([n_cells, n_cells, n_cells, 0, n_cells + 1]))
            value: Any = Array.from_values(np.full(size, draw(some_int), np.int64))
        else:
            value = (draw(some_int), draw(some_int)) if part == "reaches" else draw(some_int)
        script_state = script_state.replace(**{part: value})
    return script_state


def list_received(machine: Any) -> list[Message]:
    """Return all messages to a machine in an honest run."""
    return [given.message for _, given in machine.log if isinstance(given, Received)]


@hostile(60)
@given(st.data(), st.sampled_from(SUMMED), st.integers(0, 4), st.integers(0, 2**32))
def test_pfds_holder_answers_each_question_once_at_its_price(
    data: st.DataObject, name: str, i: int, seed: int
) -> None:
    """Send made-up asks, and honest messages in any order, repeated and left out.

    The state may be lost, the ledger never. The test begins anywhere in an honest run, because the
    messages of the others are made for the keys of that run.
    """
    peer, ledger = logged(name)[1][f"peer-{i}"], MemoryLedger()
    honest = list_received(peer)
    honest_states = [message.course for message in honest if isinstance(message, PFDSAsk)]
    box_positions = [place for place, message in enumerate(honest) if isinstance(message, SumBoxes)]
    at = data.draw(st.sampled_from(box_positions) | st.integers(0, len(honest) - 1))
    state = next(
        state
        for state, given in peer.log
        if isinstance(given, Received) and given.message is honest[at]
    )
    state, at = state.replace(asked=(), answered=()), at - 1
    sent_payloads: dict[str, set[bytes]] = {}
    for number in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.integers(0, 9))
        if step < 6:
            message = (
                honest[at := min(at + 1, len(honest) - 1)]
                if step
                else honest[at := data.draw(st.integers(0, len(honest) - 1))]
            )
        elif step < 9:
            script_state = data.draw(script_states(peer.params.n_cells, honest_states))
            message = PFDSAsk(
                study=peer.study,
                round=data.draw(st.sampled_from([max(0, script_state.step), 0, 3])),
                course=script_state,
            )
        else:
            state = peer.initial_state()
            continue
        try:
            state, _, work = give(peer, state, message, ledger, seed + number)
        except RemoteProtocolError:
            continue
        state = load(dump(state), type(state))
        for item in work:
            if getattr(item, "question", None) is not None:
                sent_payloads.setdefault(item.question, set()).add(item.payload)  # type: ignore[union-attr]
                ledger.mark_sending(peer.study.hex(), item.question)  # type: ignore[union-attr]
    assert all(len(payloads) == 1 for payloads in sent_payloads.values())
    assert (
        {question for _, question in ledger.entries}
        == set(sent_payloads)
        <= set(peer.script.prices)
    )
    assert spent(ledger) == cost(peer, sent_payloads)
    assert peer.params.delta or spent(ledger) <= grains_up(peer.params.epsilon)


@hostile(40)
@given(st.data(), st.integers(0, 4), st.integers(0, 2**32))
def test_pfds_tables_are_sent_once_for_any_messages(data: st.DataObject, i: int, seed: int) -> None:
    peer, ledger = logged("local")[1][f"peer-{i}"], MemoryLedger()
    honest = list_received(peer)
    state, sent_payloads = peer.initial_state(), set()
    for number in range(data.draw(st.integers(1, 12))):
        given: Any = data.draw(
            st.sampled_from(
                [
                    Started(),
                    *honest,
                    PFDSStudyEnd(study=peer.study, reason="No."),
                    PFDSAsk(study=peer.study, round=0, course=_START),
                ]
            )
        )
        state = peer.initial_state() if data.draw(st.integers(0, 5)) == 0 else state
        try:
            state, sent, _ = give(peer, state, given, ledger, seed + number)
        except RemoteProtocolError:
            continue
        sent_payloads |= {
            message.counts.data for message in sent if isinstance(message, HolderTables)
        }
    assert len(sent_payloads) <= 1 and len(ledger.entries) == len(sent_payloads)


_START = logged("sums")[0].script.initial_state


@hostile(60)
@given(st.data(), NAMES, st.integers(0, 2**32))
def test_pfds_aggregator_handles_any_messages(data: st.DataObject, name: str, seed: int) -> None:
    aggregator, peers, _ = logged(name)
    received = [
        (given.sender, given.message) for _, given in aggregator.log if isinstance(given, Received)
    ]
    study = aggregator.study
    state = aggregator.on_start(aggregator.initial_state(), START, SeededEntropy(1))[0]
    now, at = START, -1
    for number in range(data.draw(st.integers(1, 40))):
        kind = data.draw(st.integers(0, 9))
        entropy = SeededEntropy(seed).spawn(number)
        if kind == 9:
            now += timedelta(seconds=data.draw(st.integers(0, 50)))
            state, _ = aggregator.on_tick(state, now, entropy)
            continue
        sender, message = (
            received[at := min(at + 1, len(received) - 1)]
            if kind < 7
            else data.draw(st.sampled_from(received))
        )
        if kind == 8:
            nothing = encode_floats(np.zeros(1))
            message = data.draw(
                st.sampled_from(
                    [
                        HolderTables(
                            study=study,
                            counts=Array.from_values(
                                np.full(data.draw(st.integers(0, 40)), data.draw(some_int))
                            ),
                        ),
                        SharedModel(
                            study=study,
                            weights=nothing,
                            intercepts=nothing,
                            variances=nothing,
                            shares=nothing,
                        ),
                        PFDSStudyEnd(study=study),
                    ]
                )
            )
            sender = data.draw(st.sampled_from([*peers, "stranger"]))
        try:
            state, _ = aggregator.on_message(state, sender, message, now, entropy)
        except RemoteProtocolError:
            continue
        state = load(dump(state), type(state))
        if name != "local":
            assert len(state.answers) == len(state.survivors)
            assert all(len(there) >= aggregator.params.minimum for there in state.survivors)


@hostile(12)
@given(any_faults(most_lost=0.4), NAMES, st.integers(0, 2**32), st.sampled_from([5, 60, 3600]))
def test_pfds_keeps_every_invariant_on_any_network(
    faults: Faults, name: str, seed: int, phase_timeout: int
) -> None:
    aggregator, peers = make(name, phase_timeout=timedelta(seconds=phase_timeout))
    ledgers = {one: MemoryLedger() for one in peers}
    outcome = run_network(aggregator, peers, SeededEntropy(seed), faults, ledgers=ledgers)
    check(peers, outcome, ledgers)
    assert (AGGREGATOR in outcome.results) != (AGGREGATOR in outcome.aborted)
    published = outcome.results.get(AGGREGATOR)
    if isinstance(published, PFDSResult):
        assert min(published.n_answering) >= aggregator.params.minimum
        assert len(published.n_answering) == len(list_questions(aggregator.params))
        assert {sent_payloads.holder for sent_payloads in published.left_out} < set(sharers(peers))
        if not faults.crash and not faults.absences:
            assert all(isinstance(outcome.results[one], PersonalModel) for one in sharers(peers))
