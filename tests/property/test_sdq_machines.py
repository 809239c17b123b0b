"""SDQ whatever is asked and sent, and however bad the network."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hostile import hostile
from machine_runs import give, spent
from sdq_cases import FREE, QUERIES, STUDIES, Logged, check, logged, make
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Array, Message
from shoal.messages.codec import dump, load
from shoal.privacy.rounding import grains_up
from shoal.protocols.base import AGGREGATOR, START, Computed, MemoryLedger, Received
from shoal.protocols.joint.messages import JointFrame
from shoal.protocols.sdq.aggregator import Mining
from shoal.protocols.sdq.following import Following
from shoal.protocols.sdq.messages import Ask, BrokenOff, Counts, Ended, JointKeys, Settled, Unusable
from shoal.protocols.sdq.queries import Condition, Count, Histogram, Marginals
from shoal.protocols.sdq.script import Course
from shoal.protocols.sums.messages import SumBoxes
from shoal.sim.network import Faults, run_network
from toy.any_faults import any_faults

NAMES = st.sampled_from(sorted(STUDIES))
some_int = st.integers(-2, 4) | st.sampled_from([(1 << 63) - 1, -(1 << 63)])
features = st.lists(st.sampled_from(["a0", "kind", "a1", "nothing"]), max_size=3).map(tuple)
conditions = st.builds(Condition, feature=st.sampled_from(["a0", "kind", "a1"]), cells=st.lists(some_int, max_size=3).map(tuple))
queries = st.builds(Count, where=st.lists(conditions, max_size=2).map(tuple)) | features.flatmap(
    lambda names: st.sampled_from([Histogram(features=names), Marginals(features=names)])
)
courses = st.builds(
    Course, step=some_int, choices=st.lists(some_int, max_size=6).map(tuple), leaves=st.lists(st.booleans(), max_size=4).map(tuple)
)


@st.composite
def asks(draw: st.DrawFn, study: bytes, honest: list[Course]) -> Ask:
    """A course that answers lead to, or anything; and now and then a free count."""
    course = draw(st.sampled_from(honest)) if draw(st.booleans()) else draw(courses)
    query = draw(st.none() | st.none() | queries)
    return Ask(study=study, round=draw(st.integers(0, 12)), course=course, query=query, number=draw(st.integers(0, 3)))


def messages_to(peer: Logged) -> list[Message]:
    """All that the aggregator sent in an honest run."""
    return [given.message for _, given in peer.log if isinstance(given, Received)]


@hostile(60)
@given(st.data(), NAMES, st.integers(0, 4), st.integers(0, 2**32))
def test_a_database_answers_each_question_once_at_its_price_whatever_it_is_asked(data: st.DataObject, name: str, i: int, seed: int) -> None:
    """Asks that were made up, and honest messages in any order, doubled and left out; the state may be lost, the ledger never.

    It begins anywhere in an honest run, since what the others send is made for the keys of that run.
    """
    peer, ledger = logged(name)[1][f"peer-{i}"], MemoryLedger()
    honest = messages_to(peer)
    grown = [message.course for message in honest if isinstance(message, Ask)]
    ripe = [place for place, message in enumerate(honest) if isinstance(message, SumBoxes | JointKeys)]
    at = data.draw(st.sampled_from(ripe or [0]) | st.integers(0, len(honest) - 1))
    state = next(state for state, given in peer.log if isinstance(given, Received) and given.message is honest[at])
    state, at = state.replace(asked=(), answered=()), at - 1
    left: dict[str, set[bytes]] = {}
    for number in range(data.draw(st.integers(1, 25))):
        step = data.draw(st.integers(0, 9))
        if step < 6:
            message = honest[at := min(at + 1, len(honest) - 1)] if step else honest[at := data.draw(st.integers(0, len(honest) - 1))]
        elif step < 9:
            message = data.draw(asks(peer.study, grown))
        else:
            state = peer.initial()
            continue
        try:
            state, _, work = give(peer, state, message, ledger, seed + number)
        except RemoteProtocolError:
            continue
        if state.seat is not None and not state.seat.is_over and state.seat.links and data.draw(st.booleans()):
            state, _, more = give(peer, state, Computed(state.seat.task, (data.draw(st.integers(0, 2)),)), ledger, seed + number)
            work = (*work, *more)
        state = load(dump(state), Following)
        for item in work:
            if getattr(item, "question", None) is not None:
                left.setdefault(item.question, set()).add(item.payload)  # type: ignore[union-attr]
                ledger.mark_sending(peer.study.hex(), item.question)  # type: ignore[union-attr]
    assert all(len(payloads) == 1 for payloads in left.values())
    assert {question for _, question in ledger.entries} == set(left) <= {*peer.script.prices, "query/0", "query/1"}
    assert spent(ledger) == sum(grains_up(peer.price(question).epsilon) for question in left)
    assert spent(ledger) <= grains_up(peer.params.epsilon) + 2 * grains_up(FREE.epsilon_release)


@hostile(60)
@given(st.data(), NAMES, st.integers(0, 2**32))
def test_an_aggregator_bears_whatever_databases_send(data: st.DataObject, name: str, seed: int) -> None:
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
            message = data.draw(
                st.sampled_from(
                    [
                        Counts(study=study, round=0, counts=Array.of(np.array([data.draw(some_int)]))),
                        Settled(study=study, round=0, position=data.draw(st.integers(0, 4))),
                        Unusable(study=study, round=0, dealer=data.draw(st.integers(0, 9))),
                        JointFrame(
                            study=study, round=0, sender=data.draw(st.integers(0, 5)), to=data.draw(st.integers(0, 5)), number=0, sealed=b""
                        ),
                        BrokenOff(study=study, round=0, party=data.draw(st.none() | st.integers(0, 5))),
                        Ended(study=study),
                    ]
                )
            )
            sender = data.draw(st.sampled_from([*peers, "stranger"]))
        try:
            state, _ = aggregator.received(state, sender, message, now, entropy)
        except RemoteProtocolError:
            continue
        state = load(dump(state), Mining)
        assert len(state.n_answering) == len(state.answers) + len(state.counted)
        assert all(n >= aggregator.params.minimum for n in state.n_answering)


@hostile(12)
@given(any_faults(most_lost=0.4), NAMES, st.integers(0, 2**32), st.sampled_from([5, 60, 3600]))
def test_promises_are_kept_on_any_network(faults: Faults, name: str, seed: int, patience: int) -> None:
    aggregator, peers = make(name, free=FREE, queries=QUERIES[:1], patience=timedelta(seconds=patience))
    ledgers = {one: MemoryLedger() for one in peers}
    outcome = run_network(aggregator, peers, SeededEntropy(seed), faults, ledgers=ledgers)
    check(peers, outcome, ledgers)
    assert (AGGREGATOR in outcome.results) != (AGGREGATOR in outcome.aborted)
