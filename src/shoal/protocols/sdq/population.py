"""All databases together, vectorised.

Simulations and estimators call `simulate`. It counts over the pooled rows instead of summing over
databases, and draws the noise of a sum as one variable. Its answers must have the same distribution
as those of real peers; contract tests compare them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.entropy import Entropy
from shoal.protocols.sdq.noise import draw_summed_noise
from shoal.protocols.sdq.params import CellTable, Ints, SDQParams
from shoal.protocols.sdq.script import Answers, SDQRound, SDQScript, SDQScriptState


@dataclass(frozen=True)
class SDQSimulationResult:
    """The model, the decisions and the answers of a simulated study.

    Parameters
    ----------
    model
        Predicts the label of encoded rows.
    course
        The script state at the end.
    answers
        The miner's view: the noisy sums of every round, and for a choice the index of the chosen
        candidate.
    """

    model: Any
    course: SDQScriptState
    answers: Answers


def draw_answer(
    params: SDQParams, asked: SDQRound, table: CellTable, n_answering: int, entropy: Entropy
) -> Ints:
    """Return the miner's view of a round: the noisy sums, or the index of the largest for a choice.

    Of equal sums the first is chosen.
    """
    noisy_sums = np.concatenate([part.count(table) for part in asked.parts]) + draw_summed_noise(
        params, asked, n_answering, entropy
    )
    return np.argmax(noisy_sums, keepdims=True) if asked.is_choice else noisy_sums


def simulate(
    script: SDQScript, table: CellTable, entropy: Entropy, n_answering: int | None = None
) -> SDQSimulationResult:
    """Simulate a study: ask all databases, decide, and learn.

    Parameters
    ----------
    table
        The rows of all databases, with their owners.
    n_answering
        Number of databases with noise shares in the sums; all of them by default.

    Examples
    --------
    >>> from shoal.data.schema import Categorical, Schema
    >>> from shoal.entropy import SeededEntropy
    >>> from shoal.protocols.sdq.plus import SDQPlusScript
    >>> schema = Schema(
    ...     [Categorical("wind", ["weak", "strong"], missing=False)],
    ...     label=Categorical("play", ["no", "yes"]),
    ... )
    >>> rows = CellTable(
    ...     np.array([[0], [0], [1], [1]] * 50), np.array([1, 1, 0, 0] * 50), np.arange(200) % 10
    ... )
    >>> print(
    ...     simulate(
    ...         SDQPlusScript(SDQParams(schema, epsilon=np.inf, size=200)), rows, SeededEntropy(1)
    ...     ).model.to_text()
    ... )
    wind?  [no 100, yes 100]
    ├─ weak → yes  [no 0, yes 100]
    └─ strong → no  [no 100, yes 0]
    """
    n = script.params.n_databases if n_answering is None else n_answering
    state = SDQScriptState()
    answers: Answers = ()
    while asked := script.make_round(state):
        answers = (*answers, draw_answer(script.params, asked, table, n, entropy))
        state = script.advance(state, answers)
    return SDQSimulationResult(script.build_model(state, answers), state, answers)
