"""All holders of a study of variant plus at once, without messages: the same counts, noise of the same law, the same model.

A secure sum over holders is counted over their pooled rows, and the noise in it is drawn as one variable with the law of the sum of all
shares. With trust local every holder has noise of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from shoal.entropy import Entropy
from shoal.errors import UsageError
from shoal.protocols.pfds.local import answers_of, pooled
from shoal.protocols.pfds.model import Model
from shoal.protocols.pfds.params import Ints, Params, Rows
from shoal.protocols.pfds.sums import Answers, Course, SumScript


@dataclass(frozen=True)
class Learned:
    """What a study has learned.

    Parameters
    ----------
    model
        Predicts the label of encoded rows.
    answers
        What everyone saw: the noisy sums of every question; with trust local, the tables of each sharer in order.
    """

    model: Model
    answers: tuple[Ints, ...]


def answer(script: SumScript, course: Course, rows: Rows, n_answering: int, entropy: Entropy) -> Ints:
    """The opened sum of a question that so many holders answer, who have these rows together."""
    question = script.questions[course.step]
    mechanism, counts = script.mechanism(question), script.count(course, rows)
    return counts if mechanism is None else counts + mechanism.summed(len(counts), n_answering, entropy)


def simulate(
    params: Params,
    rows: Rows,
    digest: bytes,
    entropy: Entropy,
    n_answering: int | None = None,
    sharers: Collection[int] | None = None,
) -> Learned:
    """Ask all who share, and learn.

    Parameters
    ----------
    params
        The public figures of the study, of variant plus.
    rows
        The rows of all holders, with whose they are.
    digest
        The study's; with trust local it says who answers which tables.
    entropy
        What noise is drawn from.
    n_answering
        Trust secure-sum: holders whose shares of noise are in the sums; all who share unless told.
    sharers
        Holders that share, counted from 0; all of them unless told. The rows of others are not read.

    Examples
    --------
    >>> from shoal.domain import Categorical, Schema
    >>> from shoal.entropy import SeededEntropy
    >>> schema = Schema([Categorical("wind", ["weak", "strong"], missing=False)], label=Categorical("play", ["no", "yes"]))
    >>> params = Params(schema, epsilon=1.0, size=2000, trust="secure-sum")
    >>> rows = Rows.of(params, {"wind": np.arange(2000) % 2}, 1 - np.arange(2000) % 2, whose=np.arange(2000) % 10)
    >>> simulate(params, rows, b"digest", SeededEntropy(1)).model.decide({"wind": np.array([0, 1])})
    array([1, 0])
    """
    assert rows.whose is not None
    who = sorted(range(params.n_holders) if sharers is None else sharers)
    if params.trust == "local":
        by_holder = answers_of(params, digest, rows, who, entropy)
        return Learned(pooled(params, digest, by_holder), tuple(by_holder.values()))
    script, shared = SumScript(params), rows.take(np.isin(rows.whose, who))
    n = len(who) if n_answering is None else n_answering
    if n < params.minimum:
        raise UsageError(
            "SUM-003",
            f"{n} of {params.n_holders} holders answer; a sum of fewer than {params.minimum} is not opened.",
            why="The noise is made for that many shares.",
            fix="A smaller minimum, or more holders that share.",
        )
    course, answers = script.start, Answers()
    while script.question(course):
        answers = (*answers, answer(script, course, shared, n, entropy))
        course = script.advance(course, answers)
    return Learned(script.model(answers), answers)
