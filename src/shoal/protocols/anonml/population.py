"""A whole population of honest peers at once: the same questions, mechanisms and learning, without messages.

The counts have the law of the message path: each person's words are drawn as tickets would give them, and each report is drawn by the
question's own mechanism, many at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.entropy import Entropy
from shoal.protocols.anonml.aggregator import Learned, answers_by_phase
from shoal.protocols.anonml.assignment import draw_words
from shoal.protocols.anonml.paper import PaperScript
from shoal.protocols.anonml.params import Params, Plus
from shoal.protocols.anonml.plus import PlusScript
from shoal.protocols.anonml.questions import Question, Rows, Tally
from shoal.protocols.anonml.script import Script, Tallies


def make_script(params: Params, seed: bytes) -> Script:
    """The script of a study, for its digest as the seed that all parties share."""
    return PlusScript(params) if isinstance(params, Plus) else PaperScript(params, seed)


def simulate(script: Script, columns: Mapping[str, npt.NDArray[Any]], labels: npt.NDArray[np.int64], entropy: Entropy) -> Learned:
    """Ask everyone, count, learn.

    Parameters
    ----------
    script
        The course of the study.
    columns, labels
        Encoded rows, one for each person.
    entropy
        What assignment, noise and learning draw from.
    """
    tallies = collect(script, Rows(columns, labels, draw_words(len(labels), entropy)), entropy)
    return Learned(script.learn(tallies, entropy), answers_by_phase(tallies))


def collect(script: Script, rows: Rows, entropy: Entropy) -> Tallies:
    """The counts of all phases."""
    tallies: Tallies = ()
    places = script.place(rows.words)
    for phase in range(script.n_phases):
        questions = script.questions(phase, script.publish(tallies))
        counted = [question.empty() for question in questions]
        groups = script.group_at(phase, places)
        order = np.argsort(groups, kind="stable")
        ordered = groups[order]
        for group in np.unique(ordered).tolist():
            start, end = np.searchsorted(ordered, [group, group + 1])
            for number in script.asked(phase, group):
                counted[number] = answer(questions[number], rows.take(order[start:end]), entropy)
        tallies = (*tallies, tuple(counted))
    return tallies


def answer(question: Question, rows: Rows, entropy: Entropy) -> Tally:
    """The counted answers of some people to one question."""
    cells = question.cells(rows)
    reports = cells if question.mechanism is None else question.mechanism.report_many(cells, entropy)
    return Tally(len(cells), question.count(reports, rows.word))
