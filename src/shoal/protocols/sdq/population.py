"""All databases of a study at once, without messages: the same counts, noise of the same law, the same decisions.

A sum over databases is counted over their pooled rows, and the noise in it is drawn as one variable with the law of the sum of all shares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.entropy import Entropy
from shoal.protocols.sdq.noise import summed_noise
from shoal.protocols.sdq.params import Ints, Params, Table
from shoal.protocols.sdq.script import Answers, Course, Round, Script


@dataclass(frozen=True)
class Trained:
    """What a study has learned.

    Parameters
    ----------
    model
        Predicts the label of encoded rows.
    course
        What was decided on the way.
    answers
        What the miner saw: the noisy sums of every round, and of a choice the position of the chosen candidate.
    """

    model: Any
    course: Course
    answers: Answers


def answer(params: Params, asked: Round, table: Table, n_answering: int, entropy: Entropy) -> Ints:
    """What the miner sees of a round: the noisy sums, or of a choice the position of the largest one, on a tie the first."""
    noisy_sums = np.concatenate([part.count(table) for part in asked.parts]) + summed_noise(params, asked, n_answering, entropy)
    return np.argmax(noisy_sums, keepdims=True) if asked.is_choice else noisy_sums


def simulate(script: Script, table: Table, entropy: Entropy, n_answering: int | None = None) -> Trained:
    """Ask all databases, decide, and learn.

    Parameters
    ----------
    script
        The course of the study.
    table
        The rows of all databases, with whose they are.
    entropy
        What noise is drawn from.
    n_answering
        Databases whose shares of noise are in the sums; all of them unless told.

    Examples
    --------
    >>> from shoal.domain import Categorical, Schema
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.protocols.sdq.plus import PlusScript
    >>> schema = Schema([Categorical("wind", ["weak", "strong"], missing=False)], label=Categorical("play", ["no", "yes"]))
    >>> rows = Table(np.array([[0], [0], [1], [1]] * 50), np.array([1, 1, 0, 0] * 50), np.arange(200) % 10)
    >>> print(simulate(PlusScript(Params(schema, epsilon=np.inf, size=200)), rows, SeededEntropy(1)).model.to_text())
    wind?  [no 100, yes 100]
    ├─ weak → yes  [no 0, yes 100]
    └─ strong → no  [no 100, yes 0]
    """
    n = script.params.n_databases if n_answering is None else n_answering
    course = Course()
    answers: Answers = ()
    while asked := script.round(course):
        answers = (*answers, answer(script.params, asked, table, n, entropy))
        course = script.advance(course, answers)
    return Trained(script.model(course, answers), course, answers)
