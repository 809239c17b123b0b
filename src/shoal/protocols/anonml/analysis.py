"""What can be said about a study before anyone answers: who is asked what, how large the packets are, and how wrong the tables will be."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from shoal.domain import Numeric
from shoal.messages.codec import encode
from shoal.protocols.anonml.assignment import TICKET_BYTES
from shoal.protocols.anonml.messages import Answer, Publication
from shoal.protocols.anonml.paper import PaperScript
from shoal.protocols.anonml.params import cells_of
from shoal.protocols.anonml.plus import PlusScript
from shoal.protocols.anonml.questions import Block, Cell, Question
from shoal.protocols.anonml.script import Script

PLACING, TABLES, BITS, BLOCKS = "placing", "tables", "bits", "blocks"
"""Kinds of questions: is a number above a point; which bins and label; one bit about a feature and the label; several features at once."""

ANSWERS = "answers"
"""The phase of tables and bits."""

_DIGEST_BYTES = 32


@dataclass(frozen=True)
class Asked:
    """One question after the cut points are placed, with as many of them as may be published.

    Parameters
    ----------
    phase
        When it is asked.
    question
        What is asked.
    share
        Share of the people who are asked it.
    """

    phase: int
    question: Question
    share: Fraction

    @property
    def kind(self) -> str:
        """Its kind: `TABLES`, `BITS` or `BLOCKS`."""
        return {Cell: TABLES, Block: BLOCKS}.get(type(self.question), BITS)


@dataclass(frozen=True)
class TableError:
    """The expected error of one table, or of one bit, which is a table of two cells.

    Parameters
    ----------
    cells, answers
        Its size, and how many answers are expected.
    mechanism
        What randomises them.
    error
        Root mean square error (L2) of all shares.
    """

    cells: int
    answers: int
    mechanism: str
    error: float


def asked(script: Script) -> tuple[Asked, ...]:
    """All questions that tell of the label.

    Examples
    --------
    >>> from shoal.domain import Categorical, Schema
    >>> from shoal.protocols.anonml.params import Plus
    >>> schema = Schema([Numeric("age", 17, 90)], label=Categorical("ill", ["no", "yes"]))
    >>> [(one.kind, str(one.share), one.question.n_cells) for one in asked(PlusScript(Plus(schema, epsilon=2.0, size=1000)))]
    [('tables', '24/25', 12)]
    """
    assert isinstance(script, PlusScript | PaperScript)
    share_of = {(slot.phase, slot.question): slot.share for slot in script.slots} if isinstance(script, PlusScript) else {}
    # In the paper every person answers all questions of one partition.
    of_partition = Fraction(1, script.params.n_partitions) if isinstance(script, PaperScript) else Fraction(0)
    found = []
    for phase in range(script.n_steps, script.n_phases):
        questions = script.questions(phase, _most_published(script, phase))
        found += [Asked(phase, question, share_of.get((phase, i), of_partition)) for i, question in enumerate(questions)]
    return tuple(found)


def phase_names(script: Script) -> tuple[str, ...]:
    """What each phase is for."""
    assert isinstance(script, PlusScript | PaperScript)
    names = (PLACING,) * script.n_steps + (ANSWERS, BLOCKS)
    return names[: script.n_phases]


def shares(script: PlusScript) -> dict[str, Fraction]:
    """Share of the people who answer each kind of question, kinds that nobody is asked left out; they sum to 1."""
    found = {PLACING: script.rule.placing}
    for one in asked(script):
        found[one.kind] = found.get(one.kind, Fraction(0)) + one.share
    return {kind: share for kind, share in found.items() if share}


def table_errors(script: Script, n_people: int) -> list[TableError]:
    """The expected errors of all tables and bits that differ in size, answers or mechanism, the smallest first.

    Parameters
    ----------
    script
        The course of the study, for its declared size.
    n_people
        How many answer.

    Notes
    -----
    Ref: AnonML Theorem 2, equation 4; errata A-04. Blocks are not in it: their tables are sums over reports of a larger one.
    """
    found = set()
    for one in asked(script):
        mechanism, answers = one.question.mechanism, max(1, int(n_people * one.share))
        if mechanism is not None and one.kind != BLOCKS:
            found.add(TableError(mechanism.cardinality, answers, mechanism.name, mechanism.expected_error(answers)))
    return sorted(found, key=lambda table: table.error)


def packet_bytes(script: Script) -> int:
    """Size of the largest packet that a person may send: the ticket, the number of the question and the report, as they travel."""
    mechanisms = [one.question.mechanism for one in asked(script)]
    longest = max(report_bytes(mechanism.name, mechanism.cardinality) for mechanism in mechanisms if mechanism is not None)
    of_medians = len(script.params.unbinned) - 1
    last = max(slot.question for slot in script.slots) if isinstance(script, PlusScript) else max(of_medians, len(mechanisms) - 1)
    study, ticket = bytes(_DIGEST_BYTES), bytes(TICKET_BYTES)
    return len(encode(Answer(study=study, ticket=ticket, phase=script.n_phases - 1, question=last, report=bytes(longest))))


def report_bytes(mechanism: str, cardinality: int) -> int:
    """Size of one report: the number of a cell, or a bit for each cell."""
    bits = (cardinality - 1).bit_length() if mechanism == "random-response" else cardinality
    return -(-bits // 8)


def _most_published(script: Script, phase: int) -> Publication:
    """A publication of the kind that the phase calls for, with as many cut points as there may be."""
    if phase == 0:
        return script.publish(())
    _, _, n_levels = script.expected(phase)
    cuts = tuple(_even_cuts(number, script.max_cuts(number)) for number in script.params.unbinned)
    binned = script.binned(Publication(cuts=cuts)).features
    return Publication(cuts=cuts, levels=tuple((0,) * cells_of(feature) for feature in binned[:n_levels]))


def _even_cuts(number: Numeric, n: int) -> tuple[float, ...]:
    low, width = float(number.low), float(number.high) - float(number.low)
    return tuple(sorted({cut for cut in (low + width * i / n for i in range(n)) if cut < number.high}))
