"""All that one peer of AnonML sends in a whole study, drawn again and again for rows that differ as much as rows can.

The real peer is driven by the real step of all drivers, through every phase, with a ledger of its own; what would leave is read from the
bytes that the ledger lets go. Nothing of it is simulated but the aggregator, which publishes what it may publish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.audit.bound import Keys
from shoal.audit.looks import Look, Seen
from shoal.domain import Feature, Numeric
from shoal.entropy import Entropy
from shoal.mechanisms.reports import Report
from shoal.messages.codec import decode
from shoal.privacy.accountant import Loss
from shoal.protocols.anonml.assignment import TICKET_BYTES, words_of
from shoal.protocols.anonml.messages import MESSAGES, Answer, Ask
from shoal.protocols.anonml.params import cells_of
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.anonml.questions import Question, Rows
from shoal.protocols.anonml.script import Script, Tallies
from shoal.protocols.base import AGGREGATOR, START, Account, Input, MemoryLedger, Outbound, Received, Started, settle
from shoal.study.anonml import script_of
from shoal.study.manifest import Manifest
from shoal.study.spec import Study

MakePeer = Callable[[bytes, Script, bytes, Mapping[str, npt.NDArray[Any]], npt.NDArray[np.int64]], AnonMLPeer]
"""What makes a peer of digest, script, ticket, columns and label: the class itself, or one that a doubter has altered."""

Place = tuple[tuple[int, int], ...]
"""Phase and number of every question that was answered, in order."""

ROWS = ("lowest values and first class", "highest values and first class", "highest values and last class")
"""The rows that are told apart; any two of them are neighbours under replace.

A single bit that compares a feature with the label hides that both have changed. So there is a pair that differs in the features alone,
one in the label alone, and one in everything.
"""


def ends(feature: Feature) -> tuple[float, float]:
    """Two encoded values that fall into different cells wherever a feature is cut: its ends, or values of different groups."""
    if isinstance(feature, Numeric):
        return float(feature.low), float(feature.high)
    bins = feature.cut(np.arange(len(feature.values)))
    return 0, int(np.flatnonzero(bins != bins[0])[-1])


def corner_rows(script: Script) -> tuple[dict[str, npt.NDArray[Any]], npt.NDArray[np.int64]]:
    """Columns and labels of `ROWS`, encoded."""
    columns = {}
    for feature in script.params.schema.features:
        low, high = ends(feature)
        columns[feature.name] = np.array([low, high, high], float if isinstance(feature, Numeric) else np.int64)
    return columns, np.array([0, 0, script.params.n_labels - 1])


def open_phases(study: bytes, script: Script) -> tuple[tuple[Ask, tuple[Question, ...]], ...]:
    """The message that opens each phase and its questions, from an aggregator to whom nobody has answered.

    Levels, which it could give to bins as it likes, tell the ends of every feature apart.
    """
    phases: list[tuple[Ask, tuple[Question, ...]]] = []
    tallies: Tallies = ()
    for phase in range(script.n_phases):
        publication = script.publish(tallies)
        if publication.levels:
            publication = publication.replace(levels=tuple(_levels(feature) for feature in script.binned(publication).features))
        questions = script.questions(phase, publication)
        phases.append((Ask(study=study, phase=phase, publication=publication), questions))
        tallies = (*tallies, tuple(question.empty() for question in questions))
    return tuple(phases)


def _levels(feature: Feature) -> tuple[int, ...]:
    upper = int(feature.cut(np.array([ends(feature)[1]], float if isinstance(feature, Numeric) else np.int64))[0])
    return tuple(int(cell == upper) for cell in range(cells_of(feature)))


def supports(report: Report, cell: int) -> bool:
    """Whether a report speaks for a cell."""
    return report == cell if isinstance(report, int) else bool(report[cell >> 3] >> (cell & 7) & 1)


@dataclass(frozen=True)
class Outputs:
    """What many peers with the same row have sent, each in its whole study.

    Parameters
    ----------
    places
        The questions that each peer has answered.
    support
        ``(n, 3)``: how many of a peer's packets speak for the cell that each of `ROWS` would have had.
    charged
        The largest sum, in grains, that a ledger has counted.

    Notes
    -----
    For every mechanism of AnonML the log likelihood ratio of a report between two values is epsilon times the support of the one less that
    of the other. So where all answers cost the same, the difference of two columns holds all that the packets tell about two rows.
    """

    places: tuple[Place, ...]
    support: npt.NDArray[np.int64]
    charged: int


class Stage:
    """A study with its aggregator, on which peers can be put.

    Parameters
    ----------
    study
        Digest of the manifest.
    script
        The course of the study.
    make_peer
        What makes a peer.
    """

    def __init__(self, study: bytes, script: Script, make_peer: MakePeer = AnonMLPeer) -> None:
        self.study = study
        self.script = script
        self.make_peer = make_peer
        self.phases = open_phases(study, script)
        self._inputs: tuple[Input, ...] = (Started(), *(Received(AGGREGATOR, ask) for ask, _ in self.phases))
        self._columns, self._labels = corner_rows(script)

    def draw(self, row: int, n: int, entropy: Entropy) -> Outputs:
        """The outputs of n peers with one of `ROWS`, each with a ticket of its own."""
        columns = {name: column[row : row + 1] for name, column in self._columns.items()}
        label = self._labels[row : row + 1]
        places, support, charged = [], np.zeros((n, len(ROWS)), np.int64), 0
        for i in range(n):
            ticket, ledger = entropy.bytes(TICKET_BYTES), MemoryLedger()
            answers = self.run(self.make_peer(self.study, self.script, ticket, columns, label), ledger, entropy)
            places.append(tuple((answer.phase, answer.question) for answer in answers))
            support[i] = self._support(ticket, answers)
            charged = max(charged, sum(entry.cost for entry in ledger.entries.values()))
        return Outputs(tuple(places), support, charged)

    def run(self, peer: AnonMLPeer, ledger: MemoryLedger, entropy: Entropy) -> list[Answer]:
        """Every packet that a peer sends from beginning to end."""
        account = Account(ledger, self.study, "the row", "the aggregator", "an audit")
        state, answers = peer.initial(), []
        for given in self._inputs:
            state, work = settle(peer, state, given, START, entropy, account)
            for item in work:
                if isinstance(item, Outbound):
                    leaves = item.payload if item.question is None else account.mark_sending(item.question)
                    message = decode(leaves, MESSAGES, self.study)
                    assert isinstance(message, Answer)
                    answers.append(message)
        return answers

    def _support(self, ticket: bytes, answers: list[Answer]) -> npt.NDArray[np.int64]:
        rows = Rows(self._columns, self._labels, np.repeat(words_of(self.study, ticket), len(ROWS), axis=0))
        total = np.zeros(len(ROWS), np.int64)
        for answer in answers:
            question = self.phases[answer.phase][1][answer.question]
            assert question.mechanism is not None
            report = question.mechanism.decode(answer.report)
            total += [supports(report, cell) for cell in question.cells(rows).tolist()]
        return total


def look(study: Study, claim: Loss, samples: int, entropy: Entropy, make_peer: MakePeer) -> Seen:
    """Run so many peers with each of `ROWS`; any two of them are compared by what was answered and by which questions were.

    Any set of outputs refutes a claim, so it matters for the strength of the bound alone what of an output is looked at.
    """
    digest = Manifest(study).digest
    stage = Stage(digest, script_of(study, digest), make_peer)
    drawn = [stage.draw(row, samples, entropy) for row in range(len(ROWS))]
    asked = _numbered(drawn)
    looks = []
    for i, j in combinations(range(len(ROWS)), 2):
        said = [outputs.support[:, i] - outputs.support[:, j] for outputs in (drawn[i], drawn[j])]
        rows = (ROWS[i], ROWS[j])
        looks.append(Look("what was answered", rows, said[0], said[1], claim))
        looks.append(Look("which questions were answered", rows, asked[i], asked[j], claim))
    charged = max(outputs.charged for outputs in drawn)
    packets = max(len(place) for outputs in drawn for place in outputs.places)
    return Seen(tuple(looks), charged, packets, stage.script.n_phases, "each of three rows")


def _numbered(drawn: list[Outputs]) -> list[Keys]:
    """The places of all outputs as integers."""
    number = {place: i for i, place in enumerate(sorted({place for outputs in drawn for place in outputs.places}))}
    return [np.array([number[place] for place in outputs.places], np.int64) for outputs in drawn]
