"""Small studies of AnonML for message runs, one for each kind of question, and checks."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.messages.codec import decode
from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.ledger.state import SPENT_STATES
from shoal.privacy.rounding import grains_up
from shoal.protocols.anonml.aggregator import AnonMLAggregator
from shoal.protocols.anonml.assignment import draw_words, ticket_words
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAnswer, AnonMLAsk, AnonMLPublication
from shoal.protocols.anonml.params import AnonMLPaperParams, AnonMLParams, AnonMLPlusParams
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.anonml.population import collect_tallies
from shoal.protocols.anonml.questions import AssignedRows, Tally
from shoal.protocols.anonml.script import AnonMLScript, Tallies
from shoal.protocols.anonml.variants import make_script
from shoal.protocols.base import AGGREGATOR, MemoryLedger, ProtocolOutcome
from tests.support.machines import spent

STUDY = bytes(range(32))

FEATURES = (
    Numeric("age", 0, 10),
    Numeric("height", -5, 5, bins=[0], missing=False),
    Categorical("town", ["x", "y"], missing=False),
    Categorical(
        "job", ["p", "q", "r", "s"], groups={"one": ["s", "p"], "two": ["q"], "three": ["r"]}
    ),
)
TWO = Schema(FEATURES, label=Categorical("ill", ["no", "yes"], missing=False))
FOUR = Schema(FEATURES, label=Categorical("kind", ["a", "b", "c", "d"], missing=False))

STUDIES: dict[str, AnonMLParams] = {
    "bits": AnonMLPlusParams(TWO, 1.0, 300),
    "tables": AnonMLPlusParams(TWO, 2.0, 300),
    "grids": AnonMLPlusParams(TWO, 4.0, 300),
    "blocks": AnonMLPlusParams(TWO, 8.0, 5000),
    "classes": AnonMLPlusParams(FOUR, 2.5, 300),
    "shuffled": AnonMLPlusParams(TWO, 2.0, 300, trust="shuffled"),
    "paper": AnonMLPaperParams(TWO, 9.0, 300, n_partitions=2, n_subsets=2, subset_size=2),
    "paper of classes": AnonMLPaperParams(
        FOUR, 6.0, 300, n_partitions=3, n_subsets=1, subset_size=3, accounting="paper"
    ),
}

Columns = dict[str, npt.NDArray[Any]]


def build_named_script(name: str) -> AnonMLScript:
    return make_script(STUDIES[name], STUDY)


def people(schema: Schema, n: int, seed: int = 0) -> tuple[Columns, npt.NDArray[np.int64]]:
    """Return encoded rows whose features depend on the label, with missing values if allowed."""
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
            column = (
                labels + (rng.random(n) < 0.3) * rng.integers(0, len(feature.values), n)
            ) % len(feature.values)
        if feature.missing:
            column = np.where(
                rng.random(n) < 0.2, np.nan if isinstance(feature, Numeric) else -1, column
            )
        columns[feature.name] = column if isinstance(feature, Numeric) else column.astype(np.int64)
    return columns, labels


def row(
    columns: Columns, labels: npt.NDArray[np.int64], i: int
) -> tuple[Columns, npt.NDArray[np.int64]]:
    return {name: column[i : i + 1] for name, column in columns.items()}, labels[i : i + 1]


def ticket(i: int) -> bytes:
    return SeededEntropy("tickets").spawn(i).bytes(32)


def make(
    script: AnonMLScript, n: int, seed: int = 0, kind: type[AnonMLPeer] = AnonMLPeer, **options: Any
) -> tuple[AnonMLAggregator, dict[str, AnonMLPeer]]:
    """Return an honest aggregator and honest peers."""
    columns, labels = people(script.params.schema, n, seed)
    peers = {
        f"peer-{i}": kind(STUDY, script, ticket(i), *row(columns, labels, i)) for i in range(n)
    }
    return AnonMLAggregator(
        STUDY, script, **{"phase_timeout": timedelta(minutes=10), **options}
    ), peers


def ticket_for(script: AnonMLScript, phase: int, question: int = 0) -> bytes:
    """Return the first ticket that belongs to a question."""
    return next(
        ticket(i)
        for i in range(100_000)
        if question
        in script.list_question_numbers(
            phase, int(script.assign_groups(phase, ticket_words(STUDY, ticket(i)))[0])
        )
    )


def publications(script: AnonMLScript, n: int = 400) -> list[AnonMLPublication]:
    """Return what an honest run publishes before each phase."""
    entropy = SeededEntropy("publications")
    tallies = collect_tallies(
        script, AssignedRows(*people(script.params.schema, n), draw_words(n, entropy)), entropy
    )
    return [script.publish(tallies[:phase]) for phase in range(script.n_phases)]


def answers_sent(outcome: ProtocolOutcome) -> dict[tuple[str, int, int], set[bytes]]:
    """Return the different bytes sent for each answer, by peer, phase and question."""
    left: dict[tuple[str, int, int], set[bytes]] = {}
    for sent in outcome.sent:
        message = decode(sent.payload, MESSAGES, STUDY)
        if isinstance(message, AnonMLAnswer):
            left.setdefault((sent.sender, message.phase, message.question), set()).add(sent.payload)
    return left


def recount(script: AnonMLScript, outcome: ProtocolOutcome) -> Tallies:
    """Return the counts that follow from the sent bytes, each answer once."""
    messages = {sent.payload: decode(sent.payload, MESSAGES, STUDY) for sent in outcome.sent}
    asks = {
        message.phase: message.publication
        for message in messages.values()
        if isinstance(message, AnonMLAsk)
    }
    questions = [
        script.questions(phase, publication) for phase, publication in sorted(asks.items())
    ]
    counted = [[question.make_empty_tally() for question in phase] for phase in questions]
    for message in messages.values():
        if isinstance(message, AnonMLAnswer):
            question = questions[message.phase][message.question]
            assert question.mechanism is not None
            reports = question.mechanism.stack([question.mechanism.decode(message.report)])
            counted[message.phase][message.question] += Tally(
                1, question.count(reports, ticket_words(STUDY, message.ticket))
            )
    return tuple(tuple(phase) for phase in counted)


def plain(tallies: Tallies) -> list[list[tuple[int, list[int]]]]:
    return [[(tally.n, tally.counts.tolist()) for tally in phase] for phase in tallies]


def check(
    script: AnonMLScript,
    outcome: ProtocolOutcome,
    ledgers: Mapping[str, MemoryLedger],
    peers: Mapping[str, AnonMLPeer],
) -> None:
    """Raise AssertionError unless an honest run kept every promise, even after faults."""
    left = answers_sent(outcome)
    state = outcome.states[AGGREGATOR]
    taken = sum(tally.n for phase in state.to_tallies() for tally in phase) + state.late

    assert not outcome.rejected, "honest machines reject nothing of each other"
    assert not outcome.aborted
    assert not outcome.failed
    assert all(len(payloads) == 1 for payloads in left.values()), "a retry sends the same bytes"
    assert taken <= len(left), "an answer is taken once"
    n_acknowledged = 0
    for name, ledger in ledgers.items():
        states = {question: entry.state for (_, question), entry in ledger.entries.items()}
        mine = {(phase, question) for sender, phase, question in left if sender == name}
        begun = {question for question, at in states.items() if at in SPENT_STATES}
        assert mine <= {peers[name].own_questions[question] for question in begun}, (
            "what left is spent"
        )
        price = sum(grains_up(script.prices[question].epsilon) for question in begun)
        assert spent(ledger) == price, "the ledger's total is the script's"
        if isinstance(script.params, AnonMLPlusParams) or script.params.accounting == "plain":
            assert price <= grains_up(script.params.epsilon), (
                "nobody spends more than the study says"
            )
        n_acknowledged += sum(at is ReleaseState.SENT for at in states.values())
    assert n_acknowledged <= taken, "what is acknowledged is not lost"
    if not state.late and taken == len(left):
        assert plain(state.to_tallies()) == plain(recount(script, outcome)), (
            "the counts are those of the bytes that left"
        )


def check_complete(
    script: AnonMLScript,
    outcome: ProtocolOutcome,
    ledgers: Mapping[str, MemoryLedger],
    peers: Mapping[str, AnonMLPeer],
) -> None:
    """Check in addition that all answers arrived and that each peer spent exactly their price."""
    check(script, outcome, ledgers, peers)
    state = outcome.states[AGGREGATOR]
    assert sum(tally.n for phase in state.to_tallies() for tally in phase) + state.late == len(
        answers_sent(outcome)
    )
    for name, ledger in ledgers.items():
        assert {question for _, question in ledger.entries} == set(peers[name].own_questions)
        assert all(entry.state is ReleaseState.SENT for entry in ledger.entries.values())
        assert outcome.results[name] == len(peers[name].own_questions)
