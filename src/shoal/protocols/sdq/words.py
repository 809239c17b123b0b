"""Cells and counts in words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from shoal.domain import Feature, Numeric


def cell_names(feature: Feature) -> tuple[str, ...]:
    """A name for each cell of a feature with bins, no two alike, as `Feature.cut` numbers them; missing values come last.

    Examples
    --------
    >>> cell_names(Numeric("age", 17, 90, bins=[30, 45.5]))
    ('<= 30', '30 to 45.5', '> 45.5', 'missing')
    """
    names = (
        _ranges(feature.bins or ()) if isinstance(feature, Numeric) else list(feature.values if feature.groups is None else feature.groups)
    )
    if feature.missing:
        missing = "missing"
        while missing in names:
            missing = f"({missing})"
        names.append(missing)
    return tuple(names)


def _ranges(cuts: Sequence[float]) -> list[str]:
    if not cuts:
        return ["any"]
    shown = [_number(cut) for cut in cuts]
    if len(set(shown)) < len(shown):
        shown = [repr(float(cut)) for cut in cuts]
    between = [f"{low} to {high}" for low, high in pairwise(shown)]
    return [f"<= {shown[0]}", *between, f"> {shown[-1]}"]


def _number(x: float) -> str:
    return str(int(x)) if x == int(x) and abs(x) < 1e15 else f"{x:.6g}"


def counts_in_words(classes: Sequence[str], counts: Sequence[float], most: int | None = 3) -> str:
    """Noisy counts, rounded: all of them, or where there are more classes the largest first; nothing where they are unknown.

    Examples
    --------
    >>> counts_in_words(["no", "yes"], [12.0, -0.3])
    'no 12, yes 0'
    """
    if np.isnan(counts).any():
        return ""
    order = list(range(len(classes)))
    is_cut = most is not None and len(classes) > most
    if is_cut:
        order = sorted(order, key=lambda i: -counts[i])[:most]
    listed = ", ".join(f"{classes[i]} {round(counts[i])}" for i in order)
    return f"{listed}, …" if is_cut else listed


def noise_in_words(deviation: tuple[float, float] | None) -> str:
    """How large the noise of a tree's counts is: of a leaf's and of the root's; nothing where it is unknown, or where there is none.

    Examples
    --------
    >>> noise_in_words((4.32, 61.1))
    'noise (standard deviation): 4.3 on a count of a leaf, 61 on one of the root'
    """
    if deviation is None or not any(deviation):
        return ""
    leaf, root = (f"{x:.2g}" if x < 100 else f"{x:.0f}" for x in deviation)
    return f"noise (standard deviation): {leaf} on a count of a leaf, {root} on one of the root"
