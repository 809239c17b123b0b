"""Collusion: two selected databases are exposed as often as theory says, and shares hide as much as they promise, from C and no more.

Sample sizes: the chances of the mutant selection are more than 20 standard errors away from the true ones. For the bounds, the excess of a
mutant's exact epsilon over the claim is more than twice what the bound falls short of the truth at its alpha.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.attacks import sdq
from shoal.attacks.sdq import LeftNoise, collude
from shoal.audit.bound import bound_epsilon
from shoal.audit.looks import ranked
from shoal.domain import Categorical, Schema
from shoal.protocols.sdq.analysis import Exposure
from shoal.protocols.sdq.params import Params, Table
from shoal.protocols.sdq.script import Part, Round
from statistical.harness import catches, is_chance, statistical

ALPHA = 1e-9
SCHEMA = Schema([Categorical("ward", ["a", "b"], missing=False)], label=Categorical("falls", ["no", "yes"]))
NOBODY = Table(np.zeros((0, 1), np.int64), np.zeros(0, np.int64))
SOMEBODY = Table(np.zeros((1, 1), np.int64), np.zeros(1, np.int64))

PAIRED = Params(SCHEMA, 1.0, 100, n_databases=5, minimum=5, max_colluders=2, variant="paper", noise="two-selected")
PLAYED, LEVELS = 6_000, 3
ONE_COUNT = Round("sizes/0", (Part(lambda table: np.array([len(table)]), 1, 1.0),))

SHARED = Params(SCHEMA, 1.0, 100, n_databases=6, minimum=5, max_colluders=2)
STUDIES = 200_000
MANY_COUNTS = Round("table", (Part(lambda table: np.full(STUDIES, len(table)), STUDIES, 1.0),))


def kinds(entropy):
    """Of many selections: whether both selected collude, or one of them; what is said about the true count, 3, must be true."""
    played = [collude(PAIRED, ONE_COUNT, [SOMEBODY] * 5, (0, 4), entropy) for _ in range(PLAYED)]
    assert all(left.numbers[0] == 3 for left in played if left.is_exact)
    assert all(left.numbers[0] <= 3 for left in played if left.is_least)
    assert all(left.numbers[0] >= 3 for left in played if left.is_most)
    return np.array([left.is_exact for left in played]), np.array([left.is_least != left.is_most for left in played])


def fit(both, one, alpha):
    """Whether single selections, and trees of several, are exposed as often as theory says."""
    seen = Exposure(5, 2, LEVELS)
    trees = both.reshape(-1, LEVELS), (both | one).reshape(-1, LEVELS)
    return (
        is_chance(both.sum(), PLAYED, float(seen.both), alpha / 4)
        and is_chance(one.sum(), PLAYED, float(seen.one), alpha / 4)
        and is_chance(trees[0].any(axis=1).sum(), PLAYED // LEVELS, float(seen.ever_both), alpha / 4)
        and is_chance(trees[1].any(axis=1).sum(), PLAYED // LEVELS, float(seen.ever), alpha / 4)
    )


@statistical(alpha=ALPHA)
def test_two_selected_databases_are_exposed_as_often_as_predicted(entropy, monkeypatch):
    assert fit(*kinds(entropy), ALPHA)

    def never_the_first(inputs, entropy):
        """A selection that is not fair: one colluder is never selected."""
        adding, other = entropy.below(4), entropy.below(3)
        pair = adding + 1, (other + (other >= adding)) + 1
        return {me: 1 + pair.index(me) if me in pair else 0 for me in inputs}

    monkeypatch.setattr(sdq, "selected", never_the_first)
    assert catches(lambda: fit(*kinds(entropy), ALPHA), tries=1)


def best_bound(params, n_colluding, n_answering, entropy):
    """The lower bound on epsilon by the best guess whether a record is there, after all that colluders know is taken away.

    The record is in the first database. Databases that do not answer are missing altogether; colluders are the last that do.
    """
    colluders = range(n_answering - n_colluding, n_answering)
    law = LeftNoise(params.epsilon, (n_answering - n_colluding) / params.n_honest)
    evidence = []
    for first in (NOBODY, SOMEBODY):
        left = collude(params, MANY_COUNTS, [first, *[SOMEBODY] * (n_answering - 1)], colluders, entropy).numbers
        evidence.append(law.evidence(left, n_answering - n_colluding - 1, n_answering - n_colluding))
    return bound_epsilon(*ranked(*evidence), ALPHA).epsilon, law.epsilon


@statistical(alpha=ALPHA)
def test_as_many_colluders_and_drop_outs_as_expected_do_not_beat_the_bound(entropy):
    bound, exact = best_bound(SHARED, SHARED.max_colluders, SHARED.minimum, entropy)
    assert 0.9 * SHARED.epsilon < bound <= SHARED.epsilon == pytest.approx(exact)


@pytest.mark.parametrize(
    ("params", "n_colluding", "n_answering"),
    [
        (SHARED, 3, 5),
        (SHARED, 2, 4),
        # Shares that are made for all databases, as if nobody colluded or dropped out.
        (replace(SHARED, minimum=6, max_colluders=0), 2, 5),
    ],
    ids=["one colluder more", "one survivor fewer", "made for N shares"],
)
def test_more_of_them_do(params, n_colluding, n_answering, entropy):
    bound, exact = best_bound(params, n_colluding, n_answering, entropy)
    assert params.epsilon < bound <= exact
