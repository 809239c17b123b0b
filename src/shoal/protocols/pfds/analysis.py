"""Expected noise and tree sizes, from public parameters.

`shoal.study.pfds` forecasts the noise of a study with these functions before anyone shares data.
They read `PFDSParams` only: no row and no answer.
"""

from __future__ import annotations

import math

from shoal.data.schema import Numeric
from shoal.protocols.pfds import tables as local
from shoal.protocols.pfds.paper.tree import compute_depth, compute_max_leaves
from shoal.protocols.pfds.params import GRID, PFDSParams
from shoal.protocols.pfds.script import SecureSumScript


def compute_cell_noise(params: PFDSParams) -> float:
    """Return the noise of a cell, as a share of the rows in its table."""
    if params.trust == "secure-sum":
        mechanism = SecureSumScript(params).find_mechanism("tables")
        assert mechanism is not None, "the epsilon of a study is finite"
        return math.sqrt(mechanism.variance(params.n_holders)) / GRID / params.size
    # This share of the holders answers each table, from this share of the rows.
    share = local.choose_n_tables(params) / len(params.arities)
    scale = float(local.price_tables(params).parameters["scale"]) / GRID
    return math.sqrt(2 * params.n_holders * share) * scale / (params.size * share)


def compute_expected_leaves(params: PFDSParams) -> float:
    """Return the expected number of leaves of a tree of variant paper.

    The average is over the draws of attributes; it is capped at the largest permitted number.

    Notes
    -----
    Ref: PFDS Algorithm 3: every node draws one of the attributes left on its path. A number splits
    in two and stays available; a category splits into its values and becomes unavailable. A path
    with j categories has k - j attributes left, whichever they were. So the average over ordered
    draws of j different categories is an elementary symmetric polynomial of their numbers of
    values, times j!.
    """
    features = params.schema.features
    arities = [feature.n_bins or 1 for feature in features if not isinstance(feature, Numeric)]
    n_numbers = len(features) - len(arities)
    weights = [1.0]
    for _ in range(compute_depth(params) - 1):
        grown = [0.0] * (len(weights) + 1)
        for j, weight in enumerate(weights):
            grown[j] += weight * 2 * n_numbers / (len(features) - j)
            grown[j + 1] += weight / (len(features) - j)
        weights = grown
    products = [1.0]
    for arity in arities:
        products = [a + arity * b for a, b in zip([*products, 0.0], [0.0, *products], strict=True)][
            : len(weights)
        ]
    mean = sum(
        weight * math.factorial(j) * product
        for j, (weight, product) in enumerate(zip(weights, products, strict=False))
    )
    return min(mean, compute_max_leaves(params))
