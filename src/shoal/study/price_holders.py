"""What a holder releases about one record or person in a PFDS study, and what can be said about its noise before anything is shared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby

from shoal.domain import Numeric
from shoal.names import counted
from shoal.privacy.events import Event
from shoal.protocols.pfds import local, paper
from shoal.protocols.pfds.params import GRID, Params
from shoal.protocols.pfds.sums import SumScript
from shoal.protocols.pfds.tree import depth_of, most_leaves
from shoal.study.parts import Release
from shoal.study.priced import Forecast

_QUESTIONS = {
    "split": "the choice of split values of a level",
    "leaves": "the classes in the leaves",
    "count": "the number of records in the nodes of a level",
    "calibration": "sums of a table of scores",
    "residuals": "sums of residuals",
    "search": "sums of a second table of scores",
}
"""Kinds of questions, as the protocol names them, in words for the label."""


def price_pfds(params: Params) -> list[Release]:
    """PFDS: every question of its variant and trust, at the protocol's own price.

    Notes
    -----
    Ref: PFDS Theorem 3.3: epsilon / 2 for the tree (h_max steps on a path) and epsilon / 2 for the counts of p - 1 levels. Nodes of a
    level hold different records, so that a record pays for one of them. Holders hold different records too, and each keeps a ledger of
    its own.

    Privacy
    -------
    Unit record (or person), add-remove, against whom the study's figures say: see `Params`.
    """
    prices, tables = _prices(params), _tables(params)
    grouped = groupby(prices, key=lambda question: (_kind(question), prices[question]))
    return [Release(_QUESTIONS.get(kind, tables), event, len(list(asked))) for (kind, event), asked in grouped]


def _prices(params: Params) -> Mapping[str, Event]:
    if params.variant == "paper":
        return paper.prices(params)
    return {"tables": local.price(params)} if params.trust == "local" else SumScript(params).prices


def _tables(params: Params) -> str:
    if params.trust == "secure-sum":
        return "sums of the tables of all attributes and the label"
    return f"tables of {counted(local.n_tables(params), 'attribute')} and the label"


def forecast_pfds(params: Params) -> list[Forecast]:
    """Noise at the declared number of rows, where every holder shares: of a cell of a pooled table, or of a leaf of the paper's trees."""
    if params.variant == "paper":
        return [_leaf(params)]
    # No table has fewer cells; half of their mean is what tells the label's sides apart.
    fewest = min(params.arities) * params.n_sides
    what = "noise on one cell of a pooled table, as a share of its rows (standard deviation)"
    return [Forecast(what, _cell(params), useless_from=1 / fewest / 2)]


def _cell(params: Params) -> float:
    """Noise of a cell, as a share of the rows that are in its table."""
    if params.trust == "secure-sum":
        mechanism = SumScript(params).mechanism("tables")
        assert mechanism is not None, "the epsilon of a study is finite"
        return math.sqrt(mechanism.variance(params.n_holders)) / GRID / params.size
    # Each table is answered by so many holders, and read from their rows.
    share = local.n_tables(params) / len(params.arities)
    scale = float(local.price(params).parameters["scale"]) / GRID
    return math.sqrt(2 * params.n_holders * share) * scale / (params.size * share)


def _leaf(params: Params) -> Forecast:
    """Noise of a count in a leaf, beside what is there to be counted."""
    mechanism = paper.counting_leaves(params)
    assert mechanism is not None, "the epsilon of a study is finite"
    n_rows = params.size / params.n_holders / expected_leaves(params)
    what = (
        f"noise on a class count of a leaf, in records (standard deviation), where an average leaf of a tree of {depth_of(params)} levels "
        f"holds {f'{n_rows:,.0f}' if n_rows >= 10 else f'{n_rows:.2g}'} records"
    )
    # Half of the mean of the leaf's counts is what tells its classes apart.
    return Forecast(what, math.sqrt(mechanism.variance()), useless_from=n_rows / params.n_outcomes / 2)


def expected_leaves(params: Params) -> float:
    """Leaves of a tree of the paper's variant, on average over the draws of attributes, and no more than a tree may have.

    Notes
    -----
    Ref: PFDS Algorithm 3: every node draws one of the attributes that are left on its path; a number splits in two and stays, a category
    splits into its values and goes. A path with j categories has k - j attributes left, whichever they were, so that the average over
    ordered draws of j different categories is an elementary symmetric polynomial of their numbers of values, times j!.
    """
    features = params.schema.features
    arities = [feature.n_bins or 1 for feature in features if not isinstance(feature, Numeric)]
    n_numbers = len(features) - len(arities)
    weights = [1.0]
    for _ in range(depth_of(params) - 1):
        grown = [0.0] * (len(weights) + 1)
        for j, weight in enumerate(weights):
            grown[j] += weight * 2 * n_numbers / (len(features) - j)
            grown[j + 1] += weight / (len(features) - j)
        weights = grown
    products = [1.0]
    for arity in arities:
        products = [a + arity * b for a, b in zip([*products, 0.0], [0.0, *products], strict=True)][: len(weights)]
    mean = sum(weight * math.factorial(j) * product for j, (weight, product) in enumerate(zip(weights, products, strict=False)))
    return min(mean, most_leaves(params))


def _kind(question: str) -> str:
    return question.partition("/")[0]
