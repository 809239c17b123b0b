"""Expected errors, packet sizes and shares of people, from public parameters.

Forecasts, labels and prices of a study call it before anyone answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from shoal.data.schema import Numeric
from shoal.messages.codec import encode
from shoal.protocols.anonml.assignment import TICKET_BYTES
from shoal.protocols.anonml.messages import AnonMLAnswer, AnonMLPublication
from shoal.protocols.anonml.paper import AnonMLPaperScript
from shoal.protocols.anonml.params import count_cells
from shoal.protocols.anonml.plus import AnonMLPlusScript
from shoal.protocols.anonml.questions import BlockQuestion, CellQuestion, Question
from shoal.protocols.anonml.script import AnonMLScript

PLACING, TABLES, BITS, BLOCKS = "placing", "tables", "bits", "blocks"
"""Kinds of questions.

Is a number above a point; which bins and label; one bit about a feature and the label; several
features.
"""

ANSWERS = "answers"
"""The phase of tables and bits."""

_DIGEST_BYTES = 32


@dataclass(frozen=True)
class QuestionSummary:
    """One question after the cut points are placed, with the most cut points allowed.

    Parameters
    ----------
    share
        Share of the people who are asked it.
    """

    phase: int
    question: Question
    share: Fraction

    @property
    def kind(self) -> str:
        """Its kind: `TABLES`, `BITS` or `BLOCKS`."""
        return {CellQuestion: TABLES, BlockQuestion: BLOCKS}.get(type(self.question), BITS)


@dataclass(frozen=True)
class TableError:
    """The expected error of one table, or of one bit, which is a table of two cells.

    Parameters
    ----------
    cells, answers
        Its size, and the expected number of answers.
    mechanism
        Name of the mechanism that randomises them.
    error
        Root mean square error (L2) of all shares.
    """

    cells: int
    answers: int
    mechanism: str
    error: float


def summarise_questions(script: AnonMLScript) -> tuple[QuestionSummary, ...]:
    """Return all questions that involve the label.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Schema
    >>> from shoal.protocols.anonml.params import AnonMLPlusParams
    >>> schema = Schema([Numeric("age", 17, 90)], label=Categorical("ill", ["no", "yes"]))
    >>> [
    ...     (one.kind, str(one.share), one.question.n_cells)
    ...     for one in summarise_questions(
    ...         AnonMLPlusScript(AnonMLPlusParams(schema, epsilon=2.0, size=1000))
    ...     )
    ... ]
    [('tables', '24/25', 12)]
    """
    assert isinstance(script, AnonMLPlusScript | AnonMLPaperScript)
    shares = (
        {(slot.phase, slot.question): slot.share for slot in script.slots}
        if isinstance(script, AnonMLPlusScript)
        else {}
    )
    # In the paper every person answers all questions of one partition.
    partition_share = (
        Fraction(1, script.params.n_partitions)
        if isinstance(script, AnonMLPaperScript)
        else Fraction(0)
    )
    summaries = []
    for phase in range(script.n_steps, script.n_phases):
        questions = script.questions(phase, _make_largest_publication(script, phase))
        summaries += [
            QuestionSummary(phase, question, shares.get((phase, i), partition_share))
            for i, question in enumerate(questions)
        ]
    return tuple(summaries)


def phase_names(script: AnonMLScript) -> tuple[str, ...]:
    """Return the purpose of each phase."""
    assert isinstance(script, AnonMLPlusScript | AnonMLPaperScript)
    names = (PLACING,) * script.n_steps + (ANSWERS, BLOCKS)
    return names[: script.n_phases]


def compute_kind_shares(script: AnonMLPlusScript) -> dict[str, Fraction]:
    """Return the share of the people who answer each kind of question.

    Kinds without questions are left out; the shares sum to 1.
    """
    shares = {PLACING: script.rule.placing}
    for summary in summarise_questions(script):
        shares[summary.kind] = shares.get(summary.kind, Fraction(0)) + summary.share
    return {kind: share for kind, share in shares.items() if share}


def table_errors(script: AnonMLScript, n_people: int) -> list[TableError]:
    """Return the expected errors of all tables and bits, the smallest first.

    Tables of equal size, answers and mechanism are listed once.

    Parameters
    ----------
    script
        For the declared size of the study.
    n_people
        Number of people who answer.

    Notes
    -----
    Ref: AnonML Theorem 2, equation 4; errata A-04. Blocks are left out: their tables are sums over
    reports of a larger table.
    """
    errors = set()
    for summary in summarise_questions(script):
        mechanism, answers = summary.question.mechanism, max(1, int(n_people * summary.share))
        if mechanism is not None and summary.kind != BLOCKS:
            errors.add(
                TableError(
                    mechanism.cardinality,
                    answers,
                    mechanism.name,
                    mechanism.expected_error(answers),
                )
            )
    return sorted(errors, key=lambda table: table.error)


def packet_bytes(script: AnonMLScript) -> int:
    """Return the size of the largest packet that a person may send.

    It is the encoded answer: ticket, number of the question and report.
    """
    mechanisms = [summary.question.mechanism for summary in summarise_questions(script)]
    longest = max(
        report_bytes(mechanism.name, mechanism.cardinality)
        for mechanism in mechanisms
        if mechanism is not None
    )
    last_median = len(script.params.unbinned) - 1
    last = (
        max(slot.question for slot in script.slots)
        if isinstance(script, AnonMLPlusScript)
        else max(last_median, len(mechanisms) - 1)
    )
    study, ticket = bytes(_DIGEST_BYTES), bytes(TICKET_BYTES)
    return len(
        encode(
            AnonMLAnswer(
                study=study,
                ticket=ticket,
                phase=script.n_phases - 1,
                question=last,
                report=bytes(longest),
            )
        )
    )


def report_bytes(mechanism: str, cardinality: int) -> int:
    """Return the size of one report: the number of a cell, or a bit for each cell."""
    bits = (cardinality - 1).bit_length() if mechanism == "random-response" else cardinality
    return -(-bits // 8)


def _make_largest_publication(script: AnonMLScript, phase: int) -> AnonMLPublication:
    """Return a valid publication for the phase, with the most cut points allowed."""
    if phase == 0:
        return script.publish(())
    _, _, n_levels = script.publication_sizes(phase)
    cuts = tuple(
        _make_even_cuts(number, script.max_cuts(number)) for number in script.params.unbinned
    )
    binned = script.bin_schema(AnonMLPublication(cuts=cuts)).features
    return AnonMLPublication(
        cuts=cuts, levels=tuple((0,) * count_cells(feature) for feature in binned[:n_levels])
    )


def _make_even_cuts(number: Numeric, n: int) -> tuple[float, ...]:
    low, width = float(number.low), float(number.high) - float(number.low)
    return tuple(
        sorted({cut for cut in (low + width * i / n for i in range(n)) if cut < number.high})
    )
