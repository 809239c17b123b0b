"""Collusion in SDQ: exposure of two selected databases, and shares against colluders.

Selected databases are exposed with the predicted chance. Shares protect against the declared number
of colluders, and not against more. Sample sizes: the chances of the mutant selection are more than
20 standard errors away from the true ones. For the bounds, the excess of a mutant's exact epsilon
over the claim is more than twice the gap between the bound and the truth at its alpha.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.attacks import sdq
from shoal.attacks.sdq import RemainingNoise, collude
from shoal.audit.bound import bound_epsilon
from shoal.audit.observations import rank_samples
from shoal.data.schema import Categorical, Schema
from shoal.protocols.sdq.analysis import SDQExposure
from shoal.protocols.sdq.params import CellTable, SDQParams
from shoal.protocols.sdq.script import RoundPart, SDQRound
from tests.statistical.harness import catches, is_chance, statistical

ALPHA = 1e-9
SCHEMA = Schema(
    [Categorical("ward", ["a", "b"], missing=False)], label=Categorical("falls", ["no", "yes"])
)
WITHOUT_RECORD = CellTable(np.zeros((0, 1), np.int64), np.zeros(0, np.int64))
WITH_RECORD = CellTable(np.zeros((1, 1), np.int64), np.zeros(1, np.int64))

PAIRED = SDQParams(
    SCHEMA,
    1.0,
    100,
    n_databases=5,
    minimum=5,
    max_colluders=2,
    variant="paper",
    noise="two-selected",
)
PLAYED, LEVELS = 6_000, 3
ONE_COUNT = SDQRound("sizes/0", (RoundPart(lambda table: np.array([len(table)]), 1, 1.0),))

SHARED = SDQParams(SCHEMA, 1.0, 100, n_databases=6, minimum=5, max_colluders=2)
STUDIES = 200_000
MANY_COUNTS = SDQRound(
    "table", (RoundPart(lambda table: np.full(STUDIES, len(table)), STUDIES, 1.0),)
)


def simulate_selections(entropy):
    """Return for many selections whether both selected databases collude, or one of them.

    Statements about the true count, 3, must be true.
    """
    played = [collude(PAIRED, ONE_COUNT, [WITH_RECORD] * 5, (0, 4), entropy) for _ in range(PLAYED)]
    assert all(left.numbers[0] == 3 for left in played if left.is_exact)
    assert all(left.numbers[0] <= 3 for left in played if left.is_lower_bound)
    assert all(left.numbers[0] >= 3 for left in played if left.is_upper_bound)
    return np.array([left.is_exact for left in played]), np.array(
        [left.is_lower_bound != left.is_upper_bound for left in played]
    )


def fits_theory(both, one, alpha):
    """Return whether single selections and trees of several are exposed as predicted."""
    seen = SDQExposure(5, 2, LEVELS)
    trees = both.reshape(-1, LEVELS), (both | one).reshape(-1, LEVELS)
    return (
        is_chance(both.sum(), PLAYED, float(seen.both), alpha / 4)
        and is_chance(one.sum(), PLAYED, float(seen.one), alpha / 4)
        and is_chance(
            trees[0].any(axis=1).sum(), PLAYED // LEVELS, float(seen.ever_both), alpha / 4
        )
        and is_chance(trees[1].any(axis=1).sum(), PLAYED // LEVELS, float(seen.ever), alpha / 4)
    )


@statistical(alpha=ALPHA)
def test_two_selected_databases_are_exposed_as_predicted(entropy, monkeypatch):
    assert fits_theory(*simulate_selections(entropy), ALPHA)

    def select_unfairly(inputs, entropy):
        """Select unfairly: one colluder is never selected."""
        adding, other = entropy.below(4), entropy.below(3)
        pair = adding + 1, (other + (other >= adding)) + 1
        return {me: 1 + pair.index(me) if me in pair else 0 for me in inputs}

    monkeypatch.setattr(sdq, "select_pair", select_unfairly)
    assert catches(lambda: fits_theory(*simulate_selections(entropy), ALPHA), tries=1)


def compute_best_bound(params, n_colluding, n_answering, entropy):
    """Return the bound on epsilon by the best guess whether a record is present.

    All that colluders know is subtracted first. The record is in the first database. Databases that
    do not answer are missing altogether; colluders are the last that do.
    """
    colluders = range(n_answering - n_colluding, n_answering)
    law = RemainingNoise(params.epsilon, (n_answering - n_colluding) / params.n_honest)
    evidence = []
    for first in (WITHOUT_RECORD, WITH_RECORD):
        left = collude(
            params, MANY_COUNTS, [first, *[WITH_RECORD] * (n_answering - 1)], colluders, entropy
        ).numbers
        evidence.append(
            law.compute_evidence(left, n_answering - n_colluding - 1, n_answering - n_colluding)
        )
    return bound_epsilon(*rank_samples(*evidence), ALPHA).epsilon, law.epsilon


@statistical(alpha=ALPHA)
def test_declared_colluders_and_dropouts_do_not_exceed_epsilon(entropy):
    bound, exact = compute_best_bound(SHARED, SHARED.max_colluders, SHARED.minimum, entropy)
    assert 0.9 * SHARED.epsilon < bound <= SHARED.epsilon == pytest.approx(exact)


@pytest.mark.parametrize(
    ("params", "n_colluding", "n_answering"),
    [
        (SHARED, 3, 5),
        (SHARED, 2, 4),
        # Shares that are made for all databases, without colluders and dropouts.
        (replace(SHARED, minimum=6, max_colluders=0), 2, 5),
    ],
    ids=["one colluder more", "one survivor fewer", "made for N shares"],
)
def test_more_colluders_or_dropouts_exceed_epsilon(params, n_colluding, n_answering, entropy):
    bound, exact = compute_best_bound(params, n_colluding, n_answering, entropy)
    assert params.epsilon < bound <= exact
