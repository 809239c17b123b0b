"""Studies of AnonML small enough to be run by messages, one for each kind of question; and what must hold after any run of them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from machine_runs import spent
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.messages.codec import decode
from shoal.privacy.ledger import SPENT
from shoal.privacy.records import State
from shoal.privacy.rounding import grains_up
from shoal.protocols.anonml.aggregator import AnonMLAggregator
from shoal.protocols.anonml.assignment import draw_words, words_of
from shoal.protocols.anonml.messages import MESSAGES, Answer, Ask, Publication
from shoal.protocols.anonml.params import Paper, Params, Plus
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.anonml.population import collect, make_script
from shoal.protocols.anonml.questions import Rows, Tally
from shoal.protocols.anonml.script import Script, Tallies
from shoal.protocols.base import AGGREGATOR, MemoryLedger, Outcome

STUDY = bytes(range(32))

FEATURES = (
    Numeric("age", 0, 10),
    Numeric("height", -5, 5, bins=[0], missing=False),
    Categorical("town", ["x", "y"], missing=False),
    Categorical("job", ["p", "q", "r", "s"], groups={"one": ["s", "p"], "two": ["q"], "three": ["r"]}),
)
TWO = Schema(FEATURES, label=Categorical("ill", ["no", "yes"], missing=False))
FOUR = Schema(FEATURES, label=Categorical("kind", ["a", "b", "c", "d"], missing=False))

STUDIES: dict[str, Params] = {
    "bits": Plus(TWO, 1.0, 300),
    "tables": Plus(TWO, 2.0, 300),
    "grids": Plus(TWO, 4.0, 300),
    "blocks": Plus(TWO, 8.0, 5000),
    "classes": Plus(FOUR, 2.5, 300),
    "shuffled": Plus(TWO, 2.0, 300, trust="shuffled"),
    "paper": Paper(TWO, 9.0, 300, n_partitions=2, n_subsets=2, subset_size=2),
    "paper of classes": Paper(FOUR, 6.0, 300, n_partitions=3, n_subsets=1, subset_size=3, accounting="paper"),
}

Columns = dict[str, npt.NDArray[Any]]


def script_of(name: str) -> Script:
    return make_script(STUDIES[name], STUDY)


def people(schema: Schema, n: int, seed: int = 0) -> tuple[Columns, npt.NDArray[np.int64]]:
    """Encoded rows in which every feature leans with the label, and some values are missing where they may be."""
    rng = np.random.default_rng(seed)
    label = schema.label
    assert isinstance(label, Categorical)
    labels = rng.integers(0, len(label.values), n)
    columns: Columns = {}
    for feature in schema.features:
        if isinstance(feature, Numeric):
            share = np.clip(rng.beta(2, 3, n) + 0.1 * labels, 0, 1)
            column = feature.low + (feature.high - feature.low) * share
        else:
            column = (labels + (rng.random(n) < 0.3) * rng.integers(0, len(feature.values), n)) % len(feature.values)
        if feature.missing:
            column = np.where(rng.random(n) < 0.2, np.nan if isinstance(feature, Numeric) else -1, column)
        columns[feature.name] = column if isinstance(feature, Numeric) else column.astype(np.int64)
    return columns, labels


def row(columns: Columns, labels: npt.NDArray[np.int64], i: int) -> tuple[Columns, npt.NDArray[np.int64]]:
    return {name: column[i : i + 1] for name, column in columns.items()}, labels[i : i + 1]


def ticket(i: int) -> bytes:
    return SeededEntropy("tickets").spawn(i).bytes(32)


def make(
    script: Script, n: int, seed: int = 0, kind: type[AnonMLPeer] = AnonMLPeer, **options: Any
) -> tuple[AnonMLAggregator, dict[str, AnonMLPeer]]:
    """Everyone, honest."""
    columns, labels = people(script.params.schema, n, seed)
    peers = {f"peer-{i}": kind(STUDY, script, ticket(i), *row(columns, labels, i)) for i in range(n)}
    return AnonMLAggregator(STUDY, script, **{"patience": timedelta(minutes=10), **options}), peers


def ticket_for(script: Script, phase: int, question: int = 0) -> bytes:
    """The first ticket that belongs to a question."""
    return next(
        ticket(i) for i in range(100_000) if question in script.asked(phase, int(script.group_of(phase, words_of(STUDY, ticket(i)))[0]))
    )


def publications(script: Script, n: int = 400) -> list[Publication]:
    """What an honest run publishes before each phase."""
    entropy = SeededEntropy("publications")
    tallies = collect(script, Rows(*people(script.params.schema, n), draw_words(n, entropy)), entropy)
    return [script.publish(tallies[:phase]) for phase in range(script.n_phases)]


def answers_sent(outcome: Outcome) -> dict[tuple[str, int, int], set[bytes]]:
    """Every answer that left: peer, phase and question -> the different bytes that left for it."""
    left: dict[tuple[str, int, int], set[bytes]] = {}
    for sent in outcome.sent:
        message = decode(sent.payload, MESSAGES, STUDY)
        if isinstance(message, Answer):
            left.setdefault((sent.sender, message.phase, message.question), set()).add(sent.payload)
    return left


def recount(script: Script, outcome: Outcome) -> Tallies:
    """The counts that follow from the bytes that left, each answer once."""
    messages = {sent.payload: decode(sent.payload, MESSAGES, STUDY) for sent in outcome.sent}
    asks = {message.phase: message.publication for message in messages.values() if isinstance(message, Ask)}
    questions = [script.questions(phase, publication) for phase, publication in sorted(asks.items())]
    counted = [[question.empty() for question in phase] for phase in questions]
    for message in messages.values():
        if isinstance(message, Answer):
            question = questions[message.phase][message.question]
            assert question.mechanism is not None
            reports = question.mechanism.stack([question.mechanism.decode(message.report)])
            counted[message.phase][message.question] += Tally(1, question.count(reports, words_of(STUDY, message.ticket)))
    return tuple(tuple(phase) for phase in counted)


def plain(tallies: Tallies) -> list[list[tuple[int, list[int]]]]:
    return [[(tally.n, tally.counts.tolist()) for tally in phase] for phase in tallies]


def check(script: Script, outcome: Outcome, ledgers: Mapping[str, MemoryLedger], peers: Mapping[str, AnonMLPeer]) -> None:
    """Raise AssertionError unless an honest run kept every promise, whatever failed on the way."""
    left = answers_sent(outcome)
    state = outcome.states[AGGREGATOR]
    taken = sum(tally.n for phase in state.tallies() for tally in phase) + state.late

    assert not outcome.rejected, "honest machines reject nothing of each other"
    assert not outcome.aborted
    assert not outcome.failed
    assert all(len(payloads) == 1 for payloads in left.values()), "a retry sends the same bytes"
    assert taken <= len(left), "an answer is taken once"
    n_acknowledged = 0
    for name, ledger in ledgers.items():
        states = {question: entry.state for (_, question), entry in ledger.entries.items()}
        mine = {(phase, question) for sender, phase, question in left if sender == name}
        begun = {question for question, at in states.items() if at in SPENT}
        assert mine <= {peers[name].mine[question] for question in begun}, "what left is spent"
        price = sum(grains_up(script.prices[question].epsilon) for question in begun)
        assert spent(ledger) == price, "the ledger's total is the script's"
        if isinstance(script.params, Plus) or script.params.accounting == "plain":
            assert price <= grains_up(script.params.epsilon), "nobody spends more than the study says"
        n_acknowledged += sum(at is State.SENT for at in states.values())
    assert n_acknowledged <= taken, "what is acknowledged is not lost"
    if not state.late and taken == len(left):
        assert plain(state.tallies()) == plain(recount(script, outcome)), "the counts are those of the bytes that left"


def check_complete(script: Script, outcome: Outcome, ledgers: Mapping[str, MemoryLedger], peers: Mapping[str, AnonMLPeer]) -> None:
    """Also that everything arrived, and that every peer answered all that is its own and spent exactly that."""
    check(script, outcome, ledgers, peers)
    state = outcome.states[AGGREGATOR]
    assert sum(tally.n for phase in state.tallies() for tally in phase) + state.late == len(answers_sent(outcome))
    for name, ledger in ledgers.items():
        assert {question for _, question in ledger.entries} == set(peers[name].mine)
        assert all(entry.state is State.SENT for entry in ledger.entries.values())
        assert outcome.results[name] == len(peers[name].mine)
