"""All holders of a study of variant plus together, vectorised.

Simulations, the audit and estimators call `simulate`. The counts and the model equal those of real
peers, and the noise has the same distribution; contract tests compare both.

A secure sum is counted over the pooled rows of its holders. Its noise is drawn as one variable with
the distribution of the sum of all shares. With trust local, each holder's noise is drawn
separately.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from shoal.entropy import Entropy
from shoal.errors import UsageError
from shoal.protocols.pfds.messages import PFDSScriptState
from shoal.protocols.pfds.model import PooledModel
from shoal.protocols.pfds.params import Ints, PFDSParams, PFDSRows
from shoal.protocols.pfds.script import Answers, SecureSumScript
from shoal.protocols.pfds.tables import draw_answers, pool_tables


@dataclass(frozen=True)
class PFDSSimulationResult:
    """Result of a simulated study.

    Parameters
    ----------
    model
        Predicts the label of encoded rows.
    answers
        The public answers: the noisy sums of every question; with trust local, the tables of each
        sharing holder in order.
    """

    model: PooledModel
    answers: tuple[Ints, ...]


def draw_sum(
    script: SecureSumScript,
    script_state: PFDSScriptState,
    rows: PFDSRows,
    n_answering: int,
    entropy: Entropy,
) -> Ints:
    """Return the opened sum of a question that ``n_answering`` holders answer.

    ``rows`` are the rows of these holders together.
    """
    question = script.questions[script_state.step]
    mechanism, counts = script.find_mechanism(question), script.count(script_state, rows)
    return (
        counts
        if mechanism is None
        else counts + mechanism.draw_sum(len(counts), n_answering, entropy)
    )


def simulate(
    params: PFDSParams,
    rows: PFDSRows,
    digest: bytes,
    entropy: Entropy,
    n_answering: int | None = None,
    sharers: Collection[int] | None = None,
) -> PFDSSimulationResult:
    """Ask all sharing holders, and learn the model.

    Parameters
    ----------
    params
        Of variant plus.
    rows
        The rows of all holders, with `owners`.
    digest
        Digest of the study; with trust local it determines which holder answers which tables.
    n_answering
        Trust secure-sum: number of holders that add a share of noise; default: all that share.
    sharers
        Holders that share, counted from 0; default: all. The rows of the others are not read.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Schema
    >>> from shoal.entropy import SeededEntropy
    >>> schema = Schema(
    ...     [Categorical("wind", ["weak", "strong"], missing=False)],
    ...     label=Categorical("play", ["no", "yes"]),
    ... )
    >>> params = PFDSParams(schema, epsilon=1.0, size=2000, trust="secure-sum")
    >>> rows = PFDSRows.from_columns(
    ...     params,
    ...     {"wind": np.arange(2000) % 2},
    ...     1 - np.arange(2000) % 2,
    ...     owners=np.arange(2000) % 10,
    ... )
    >>> simulate(params, rows, b"digest", SeededEntropy(1)).model.decide({"wind": np.array([0, 1])})
    array([1, 0])
    """
    assert rows.owners is not None
    who = sorted(range(params.n_holders) if sharers is None else sharers)
    if params.trust == "local":
        by_holder = draw_answers(params, digest, rows, who, entropy)
        return PFDSSimulationResult(
            pool_tables(params, digest, by_holder), tuple(by_holder.values())
        )
    script, shared = SecureSumScript(params), rows.take(np.isin(rows.owners, who))
    n = len(who) if n_answering is None else n_answering
    if n < params.minimum:
        raise UsageError(
            "SUM-003",
            f"{n} of {params.n_holders} holders answer; a sum of fewer than {params.minimum} is "
            "not opened.",
            why=f"Each share of noise is scaled for {params.minimum} holders.",
            fix="Lower the minimum, or let more holders share.",
        )
    script_state, answers = script.initial_state, Answers()
    while script.find_question(script_state):
        answers = (*answers, draw_sum(script, script_state, shared, n, entropy))
        script_state = script.advance(script_state, answers)
    return PFDSSimulationResult(script.build_model(answers), answers)
