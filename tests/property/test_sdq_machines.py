"""SDQ for any messages and networks."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import AGGREGATOR, START, Computed, MemoryLedger, Received
from shoal.protocols.mpc.party import JointFrame
from shoal.protocols.sdq.aggregator import SDQAggregatorState
from shoal.protocols.sdq.messages import (
    ChoiceResult,
    ComputationFailure,
    Counts,
    JointKeys,
    SDQAsk,
    SDQStudyEnd,
    UnusableShares,
)
from shoal.protocols.sdq.peer import SDQPeerState
from shoal.protocols.sdq.queries import CountQuery, HistogramQuery, MarginalsQuery, QueryCondition
from shoal.protocols.sdq.script import SDQScriptState
from shoal.protocols.secagg.messages import SumBoxes
from shoal.simulation.network import Faults, run_network
from tests.support.hostile import hostile
from tests.support.machines import give, spent
from tests.support.sdq import FREE, QUERIES, STUDIES, Logged, check, logged, make
from tests.support.toy.any_faults import any_faults

NAMES = st.sampled_from(sorted(STUDIES))
some_int = st.integers(-2, 4) | st.sampled_from([(1 << 63) - 1, -(1 << 63)])
features = st.lists(st.sampled_from(["a0", "kind", "a1", "nothing"]), max_size=3).map(tuple)
conditions = st.builds(
    QueryCondition,
    feature=st.sampled_from(["a0", "kind", "a1"]),
    cells=st.lists(some_int, max_size=3).map(tuple),
)
queries = st.builds(
    CountQuery, where=st.lists(conditions, max_size=2).map(tuple)
) | features.flatmap(
    lambda names: st.sampled_from([HistogramQuery(features=names), MarginalsQuery(features=names)])
)
script_states = st.builds(
    SDQScriptState,
    step=some_int,
    choices=st.lists(some_int, max_size=6).map(tuple),
    leaves=st.lists(st.booleans(), max_size=4).map(tuple),
)


@st.composite
def asks(draw: st.DrawFn, study: bytes, honest: list[SDQScriptState]) -> SDQAsk:
    """Generate a script state that answers lead to, any other one, or a free query."""
    script_state = draw(st.sampled_from(honest)) if draw(st.booleans()) else draw(script_states)
    query = draw(st.none() | st.none() | queries)
    return SDQAsk(
        study=study,
        round=draw(st.integers(0, 12)),
        course=script_state,
        query=query,
        number=draw(st.integers(0, 3)),
    )


def list_received(peer: Logged) -> list[Message]:
    """Return all messages of the aggregator in an honest run."""
    return [given.message for _, given in peer.log if isinstance(given, Received)]


@hostile(60)
@given(st.data(), NAMES, st.integers(0, 4), st.integers(0, 2**32))
def test_sdq_database_answers_each_question_once_at_its_price(
    data: st.DataObject, name: str, i: int, seed: int
) -> None:
    """Send made-up asks, and honest messages in any order, repeated and left out.

    The state may be lost, the ledger never. The test begins anywhere in an honest run, because the
    messages of the others are made for the keys of that run.
    """
    peer, ledger = logged(name)[1][f"peer-{i}"], MemoryLedger()
    honest = list_received(peer)
    honest_states = [message.course for message in honest if isinstance(message, SDQAsk)]
    ripe = [
        place for place, message in enumerate(honest) if isinstance(message, SumBoxes | JointKeys)
    ]
    at = data.draw(st.sampled_from(ripe or [0]) | st.integers(0, len(honest) - 1))
    state = next(
        state
        for state, given in peer.log
        if isinstance(given, Received) and given.message is honest[at]
    )
    state, at = state.replace(asked=(), answered=()), at - 1
    left: dict[str, set[bytes]] = {}
    for number in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.integers(0, 9))
        if step < 6:
            message = (
                honest[at := min(at + 1, len(honest) - 1)]
                if step
                else honest[at := data.draw(st.integers(0, len(honest) - 1))]
            )
        elif step < 9:
            message = data.draw(asks(peer.study, honest_states))
        else:
            state = peer.initial_state()
            continue
        try:
            state, _, work = give(peer, state, message, ledger, seed + number)
        except RemoteProtocolError:
            continue
        if (
            state.seat is not None
            and not state.seat.is_over
            and state.seat.links
            and data.draw(st.booleans())
        ):
            state, _, more = give(
                peer,
                state,
                Computed(state.seat.task, (data.draw(st.integers(0, 2)),)),
                ledger,
                seed + number,
            )
            work = (*work, *more)
        state = load(dump(state), SDQPeerState)
        for item in work:
            if getattr(item, "question", None) is not None:
                left.setdefault(item.question, set()).add(item.payload)  # type: ignore[union-attr]
                ledger.mark_sending(peer.study.hex(), item.question)  # type: ignore[union-attr]
    assert all(len(payloads) == 1 for payloads in left.values())
    assert (
        {question for _, question in ledger.entries}
        == set(left)
        <= {*peer.script.prices, "query/0", "query/1"}
    )
    assert spent(ledger) == sum(grains_up(peer.price(question).epsilon) for question in left)
    assert spent(ledger) <= grains_up(peer.params.epsilon) + 2 * grains_up(FREE.epsilon_release)


@hostile(60)
@given(st.data(), NAMES, st.integers(0, 2**32))
def test_sdq_aggregator_handles_any_messages(data: st.DataObject, name: str, seed: int) -> None:
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
            message = data.draw(
                st.sampled_from(
                    [
                        Counts(
                            study=study,
                            round=0,
                            counts=Array.from_values(np.array([data.draw(some_int)])),
                        ),
                        ChoiceResult(study=study, round=0, position=data.draw(st.integers(0, 4))),
                        UnusableShares(study=study, round=0, dealer=data.draw(st.integers(0, 9))),
                        JointFrame(
                            study=study,
                            round=0,
                            sender=data.draw(st.integers(0, 5)),
                            to=data.draw(st.integers(0, 5)),
                            number=0,
                            sealed=b"",
                        ),
                        ComputationFailure(
                            study=study, round=0, party=data.draw(st.none() | st.integers(0, 5))
                        ),
                        SDQStudyEnd(study=study),
                    ]
                )
            )
            sender = data.draw(st.sampled_from([*peers, "stranger"]))
        try:
            state, _ = aggregator.on_message(state, sender, message, now, entropy)
        except RemoteProtocolError:
            continue
        state = load(dump(state), SDQAggregatorState)
        assert len(state.n_answering) == len(state.answers) + len(state.counted)
        assert all(n >= aggregator.params.minimum for n in state.n_answering)


@hostile(12)
@given(any_faults(most_lost=0.4), NAMES, st.integers(0, 2**32), st.sampled_from([5, 60, 3600]))
def test_sdq_keeps_every_invariant_on_any_network(
    faults: Faults, name: str, seed: int, phase_timeout: int
) -> None:
    aggregator, peers = make(
        name, free=FREE, queries=QUERIES[:1], phase_timeout=timedelta(seconds=phase_timeout)
    )
    ledgers = {one: MemoryLedger() for one in peers}
    outcome = run_network(aggregator, peers, SeededEntropy(seed), faults, ledgers=ledgers)
    check(peers, outcome, ledgers)
    assert (AGGREGATOR in outcome.results) != (AGGREGATOR in outcome.aborted)
