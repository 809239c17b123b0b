"""A whole population of honest peers, vectorised.

Simulations and estimators call `simulate`. It uses the same questions, mechanisms and learning as
the message path, without messages. The counts must have the same distribution as on that path: each
person's words are drawn as tickets would give them, and the question's own mechanism draws each
report, many per call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.protocols.anonml.aggregator import AnonMLResult, count_answers
from shoal.protocols.anonml.assignment import draw_words
from shoal.protocols.anonml.questions import AssignedRows, Question, Tally
from shoal.protocols.anonml.script import AnonMLScript, Tallies


def simulate(
    script: AnonMLScript,
    columns: Mapping[str, npt.NDArray[Any]],
    labels: npt.NDArray[np.int64],
    entropy: Entropy,
) -> AnonMLResult:
    """Ask everyone, count, and learn.

    Parameters
    ----------
    columns, labels
        Encoded rows, one for each person.
    entropy
        Randomness of assignment, noise and learning.
    """
    tallies = collect_tallies(
        script, AssignedRows(columns, labels, draw_words(len(labels), entropy)), entropy
    )
    return AnonMLResult(script.learn(tallies, entropy), count_answers(tallies))


def collect_tallies(script: AnonMLScript, rows: AssignedRows, entropy: Entropy) -> Tallies:
    """Return the counts of all phases."""
    tallies: Tallies = ()
    positions = script.assign_positions(rows.words)
    for phase in range(script.n_phases):
        questions = script.questions(phase, script.publish(tallies))
        counted = [question.make_empty_tally() for question in questions]
        groups = script.find_groups(phase, positions)
        order = np.argsort(groups, kind="stable")
        ordered = groups[order]
        for group in np.unique(ordered).tolist():
            start, end = np.searchsorted(ordered, [group, group + 1])
            for number in script.list_question_numbers(phase, group):
                counted[number] = answer_question(
                    questions[number], rows.take(order[start:end]), entropy
                )
        tallies = (*tallies, tuple(counted))
    return tallies


def answer_question(question: Question, rows: AssignedRows, entropy: Entropy) -> Tally:
    """Return the counted answers of some people to one question."""
    cells = question.find_cells(rows)
    reports = (
        cells if question.mechanism is None else question.mechanism.report_many(cells, entropy)
    )
    return Tally(len(cells), question.count(reports, rows.chosen_words))
