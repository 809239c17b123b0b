"""Audit of AnonML: outputs of one peer in whole studies, for rows that differ the most.

`shoal.audit.study` calls `AUDITED`. The real peer runs through all phases with the step function
of all drivers and a separate ledger; the outputs are the bytes that the ledger releases. Only the
aggregator is simulated; it publishes only what the protocol allows.

The choice of questions, and the cells of the rows, are compared by what they mean; all cells and
bytes by `shoal.audit.distinguishers`; and all that leaves outside the reports by
`shoal.audit.replay`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.audit.bound import Keys
from shoal.audit.distinguishers import (
    MAX_NUMBERS,
    Reports,
    choose_evenly,
    observe_reports,
    stack_bytes,
)
from shoal.audit.observations import AuditedProtocol, Observation, Observations
from shoal.audit.replay import RunPeer, WrapPeer, count_replays, replay_neighbours
from shoal.data.schema import Feature, Numeric
from shoal.entropy import Entropy, SeededEntropy
from shoal.mechanisms.frequency_oracle import Report
from shoal.messages.codec import decode, encode
from shoal.privacy.accountant import Loss
from shoal.protocols.anonml.assignment import TICKET_BYTES, ticket_words
from shoal.protocols.anonml.messages import MESSAGES, AnonMLAnswer, AnonMLAsk
from shoal.protocols.anonml.params import count_cells
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.anonml.questions import AssignedRows, Question
from shoal.protocols.anonml.script import AnonMLScript, Tallies
from shoal.protocols.base import (
    AGGREGATOR,
    START,
    Input,
    MemoryLedger,
    OutgoingMessage,
    Received,
    Started,
    run_input,
)
from shoal.study.anonml import build_script
from shoal.study.manifest import Manifest
from shoal.study.spec import Study

MakePeer = Callable[
    [bytes, AnonMLScript, bytes, Mapping[str, npt.NDArray[Any]], npt.NDArray[np.int64]], AnonMLPeer
]
"""Constructor of a peer: the class, or a changed one that an audit must detect.

Its arguments are digest, script, ticket, columns and label.
"""

AnsweredQuestions = tuple[tuple[int, int], ...]
"""Phase and number of each answered question, in order."""

ROWS = (
    "lowest values and first class",
    "highest values and first class",
    "highest values and last class",
)
"""The rows to distinguish; any two of them are neighbours under replace.

A single bit that compares a feature with the label hides a change of both. So one pair differs
only in the features, one only in the label, and one in everything.
"""


def find_ends(feature: Feature) -> tuple[float, float]:
    """Return two encoded values that are in different cells for any cut of the feature.

    They are the ends of its range, or values of different groups.
    """
    if isinstance(feature, Numeric):
        return float(feature.low), float(feature.high)
    bins = feature.cut(np.arange(len(feature.values)))
    return 0, int(np.flatnonzero(bins != bins[0])[-1])


def make_corner_rows(
    script: AnonMLScript,
) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.int64]]:
    """Return columns and labels of `ROWS`, encoded."""
    columns = {}
    for feature in script.params.schema.features:
        low, high = find_ends(feature)
        columns[feature.name] = np.array(
            [low, high, high], float if isinstance(feature, Numeric) else np.int64
        )
    return columns, np.array([0, 0, script.params.n_labels - 1])


def open_phases(
    study: bytes, script: AnonMLScript
) -> tuple[tuple[AnonMLAsk, tuple[Question, ...]], ...]:
    """Return the opening message of each phase and its questions.

    The aggregator has received no answers. It could assign levels to bins as it likes; here they
    separate the ends of each feature.
    """
    phases: list[tuple[AnonMLAsk, tuple[Question, ...]]] = []
    tallies: Tallies = ()
    for phase in range(script.n_phases):
        publication = script.publish(tallies)
        if publication.levels:
            publication = publication.replace(
                levels=tuple(
                    _make_levels(feature) for feature in script.bin_schema(publication).features
                )
            )
        questions = script.questions(phase, publication)
        phases.append((AnonMLAsk(study=study, phase=phase, publication=publication), questions))
        tallies = (*tallies, tuple(question.make_empty_tally() for question in questions))
    return tuple(phases)


def _make_levels(feature: Feature) -> tuple[int, ...]:
    upper = int(
        feature.cut(
            np.array([find_ends(feature)[1]], float if isinstance(feature, Numeric) else np.int64)
        )[0]
    )
    return tuple(int(cell == upper) for cell in range(count_cells(feature)))


def supports(report: Report, cell: int) -> bool:
    """Return whether a report supports a cell."""
    return report == cell if isinstance(report, int) else bool(report[cell >> 3] >> (cell & 7) & 1)


def read_cells(report: Report) -> Keys:
    """Return the cell of a report, or its bit for each cell."""
    if isinstance(report, int):
        return np.array([report])
    return np.unpackbits(np.frombuffer(report, np.uint8), bitorder="little").astype(np.int64)


@dataclass(frozen=True)
class AnonMLOutputs:
    """Outputs of many peers with the same row, each in its whole study.

    Parameters
    ----------
    answered_questions
        The questions that each peer answered.
    support
        ``(n, 3)``: the number of a peer's packets that support the cell of each of `ROWS`.
    numbers, contexts
        ``(n, k)``: the bits or the cell of each report, and the question of each.
    payloads
        The bytes of all packets of each peer.
    charge
        Largest sum charged by a ledger, in grains.

    Notes
    -----
    For all mechanisms of AnonML the log-likelihood ratio of a report between two values is epsilon
    times the difference of their supports. So if all answers cost the same, the difference of two
    columns contains all information of the packets about two rows.
    """

    answered_questions: tuple[AnsweredQuestions, ...]
    support: npt.NDArray[np.int64]
    numbers: Keys
    contexts: Keys
    payloads: tuple[bytes, ...]
    charge: int


class AnonMLAuditHarness:
    """A study with its aggregator, in which peers are run.

    Parameters
    ----------
    study
        Digest of the manifest.
    """

    def __init__(
        self, study: bytes, script: AnonMLScript, make_peer: MakePeer = AnonMLPeer
    ) -> None:
        self.study = study
        self.script = script
        self.make_peer = make_peer
        self.phases = open_phases(study, script)
        self._inputs: tuple[Input, ...] = (
            Started(),
            *(Received(AGGREGATOR, ask) for ask, _ in self.phases),
        )
        self._columns, self._labels = make_corner_rows(script)
        pairs = [
            (phase, number)
            for phase, (_, questions) in enumerate(self.phases)
            for number in range(len(questions))
        ]
        self._numbers = {pair: i for i, pair in enumerate(pairs)}
        self._n_packets = min(len(script.prices), MAX_NUMBERS)

    def draw(self, row: int, n: int, entropy: Entropy) -> AnonMLOutputs:
        """Return the outputs of n peers with one of `ROWS`, each with a separate ticket."""
        questions, support, charge = [], np.zeros((n, len(ROWS)), np.int64), 0
        most = max(1, MAX_NUMBERS // self._n_packets)
        widest = max(question.n_cells for _, some in self.phases for question in some)
        width = min(most, 8 * -(-widest // 8))
        numbers: Keys = np.zeros((n, self._n_packets, width), np.int64)
        contexts, payloads = np.zeros_like(numbers), []
        for i in range(n):
            ticket, ledger = entropy.bytes(TICKET_BYTES), MemoryLedger()
            answers = self.run_peer(self._make_peer(row, ticket), ledger, entropy)
            questions.append(tuple((answer.phase, answer.question) for answer in answers))
            support[i] = self._count_support(ticket, answers)
            for at, answer in enumerate(answers[: self._n_packets]):
                cells = read_cells(self._decode_report(answer))
                cells = cells[choose_evenly(cells.size, width)]
                numbers[i, at, : cells.size] = cells
                contexts[i, at] = 1 + self._numbers[answer.phase, answer.question]
            payloads.append(b"".join(map(encode, answers)))
            charge = max(charge, sum(entry.cost for entry in ledger.entries.values()))
        return AnonMLOutputs(
            tuple(questions),
            support,
            numbers.reshape(n, -1),
            contexts.reshape(n, -1),
            tuple(payloads),
            charge,
        )

    def _make_peer(self, row: int, ticket: bytes) -> AnonMLPeer:
        columns = {name: column[row : row + 1] for name, column in self._columns.items()}
        return self.make_peer(self.study, self.script, ticket, columns, self._labels[row : row + 1])

    def make_run(self, rows: tuple[int, int]) -> RunPeer:
        """Return the run of a peer with one of two rows, for replays."""

        def run(which: int, entropy: SeededEntropy, wrap: WrapPeer) -> None:
            peer = self._make_peer(rows[which], entropy.bytes(TICKET_BYTES))
            self.run_peer(wrap(peer), MemoryLedger(), entropy)

        return run

    def run_peer(self, peer: Any, ledger: MemoryLedger, entropy: Entropy) -> list[AnonMLAnswer]:
        """Return all packets that a peer sends in the whole study."""
        account = ledger.account(self.study, "the row", "the aggregator", "an audit")
        state, answers = peer.initial_state(), []
        for given in self._inputs:
            state, work = run_input(peer, state, given, START, entropy, account)
            for item in work:
                if isinstance(item, OutgoingMessage):
                    payload = (
                        item.payload
                        if item.question is None
                        else account.mark_sending(item.question)
                    )
                    message = decode(payload, MESSAGES, self.study)
                    assert isinstance(message, AnonMLAnswer)
                    answers.append(message)
        return answers

    def _count_support(self, ticket: bytes, answers: list[AnonMLAnswer]) -> npt.NDArray[np.int64]:
        rows = AssignedRows(
            self._columns,
            self._labels,
            np.repeat(ticket_words(self.study, ticket), len(ROWS), axis=0),
        )
        total = np.zeros(len(ROWS), np.int64)
        for answer in answers:
            report, question = (
                self._decode_report(answer),
                self.phases[answer.phase][1][answer.question],
            )
            total += [supports(report, cell) for cell in question.find_cells(rows).tolist()]
        return total

    def _decode_report(self, answer: AnonMLAnswer) -> Report:
        mechanism = self.phases[answer.phase][1][answer.question].mechanism
        assert mechanism is not None
        return mechanism.decode(answer.report)


def observe_study(
    study: Study, claim: Loss, samples: int, entropy: Entropy, make_peer: MakePeer
) -> Observations:
    """Run a number of peers with each of `ROWS`, and compare each two rows.

    They are compared by the answers, by the choice of questions, and by all cells and bytes. Any
    set of outputs can refute a claim, so the parts of an output that are compared affect only the
    strength of the bound.
    """
    digest = Manifest(study).digest
    harness = AnonMLAuditHarness(digest, build_script(study, digest), make_peer)
    samples_by_row = [harness.draw(row, samples, entropy) for row in range(len(ROWS))]
    choices = _number_outputs(samples_by_row)
    observations, runs = [], {}
    for i, j in combinations(range(len(ROWS)), 2):
        first, second = (
            outputs.support[:, i] - outputs.support[:, j]
            for outputs in (samples_by_row[i], samples_by_row[j])
        )
        rows = (ROWS[i], ROWS[j])
        observations.append(Observation("the answers", rows, first, second, claim))
        observations.append(
            Observation("the choice of questions", rows, choices[i], choices[j], claim)
        )
        observations += observe_reports(
            rows, _make_reports(samples_by_row[i], samples_by_row[j]), claim
        )
        runs[rows] = harness.make_run((i, j))
    charge = max(outputs.charge for outputs in samples_by_row)
    packets = max(
        len(questions) for outputs in samples_by_row for questions in outputs.answered_questions
    )
    return Observations(
        tuple(observations),
        charge,
        packets,
        harness.script.n_phases,
        "each of three rows",
        replay_neighbours(runs, count_replays(samples), entropy),
    )


def _make_reports(first: AnonMLOutputs, second: AnonMLOutputs) -> Reports:
    return Reports(
        (first.numbers, second.numbers),
        (first.contexts, second.contexts),
        stack_bytes(first.payloads, second.payloads),
    )


def _number_outputs(samples: list[AnonMLOutputs]) -> list[Keys]:
    """Return the answered questions of all outputs as integers."""
    number = {
        questions: i
        for i, questions in enumerate(
            sorted({questions for outputs in samples for questions in outputs.answered_questions})
        )
    }
    return [
        np.array([number[questions] for questions in outputs.answered_questions], np.int64)
        for outputs in samples
    ]


SAMPLES = 4000
"""Peers with each of the rows: seconds for one phase, half a minute for sixteen phases."""


def _observe(
    study: Study,
    claim: Loss,
    whole: Loss,
    samples: int,
    entropy: Entropy,
    make_peer: MakePeer | None,
) -> Observations:
    del whole
    return observe_study(study, claim, samples, entropy, make_peer or AnonMLPeer)


AUDITED = AuditedProtocol("anonml", _observe, lambda _: SAMPLES, lambda _: False)
