"""Composition by privacy loss distributions (dp_accounting), an oracle for the accountant.

Tests compare `shoal.privacy.accountant` with it; the package does not use it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from dp_accounting.pld.common import DifferentialPrivacyParameters
from dp_accounting.pld.privacy_loss_distribution import from_privacy_parameters

from shoal.privacy.accountant import compose_zcdp
from shoal.privacy.events import Event

_DOUBT = 1e-9
"""More than the transforms can lose of a delta; tested against exact sums."""
_GRID = 128
_MAX_CELLS = 10**6


def compose_pld(events: Sequence[Event], delta: float) -> float:
    """Return an upper bound on the epsilon of all releases together.

    Notes
    -----
    A release of (epsilon, delta) is dominated by the worst mechanism of that pair (Kairouz, Oh,
    Viswanath 2015). Releases with a rho and a delta (Gaussian noise) are first composed by zCDP at
    half of the target, and enter as one. Losses are rounded up to a grid, and the target is lowered
    by more than the transforms can lose, so the result is an upper bound.
    """
    assert delta > 10 * _DOUBT, "the transforms are not precise enough"
    concentrated = [event for event in events if event.rho is not None and event.delta > 0]
    pairs = Counter(
        (event.epsilon, event.delta) for event in events if event.rho is None or event.delta == 0
    )
    if concentrated:
        pairs[compose_zcdp(concentrated, delta / 2).epsilon, delta / 2] += 1
    # A power of two below the smallest epsilon: equal epsilons fall on the grid without rounding.
    interval = min(epsilon for epsilon, _ in pairs) / _GRID
    while sum(epsilon * n for (epsilon, _), n in pairs.items()) / interval > _MAX_CELLS:
        interval *= 2
    parts = [
        from_privacy_parameters(DifferentialPrivacyParameters(*pair), interval).self_compose(n)
        for pair, n in pairs.items()
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.compose(part)
    epsilon = float(whole.get_epsilon_for_delta(delta - _DOUBT)) * (1 + 1e-9)
    assert math.isfinite(epsilon), "the target is below the deltas of the releases"
    return epsilon
