"""k-closest reports against their law: alignment, mean, and independence; and the step that is made of one.

Sample sizes: half the epsilon lowers the alignment from 0.51 to 0.28, where reports spread by 0.3: 2,000 see that at thirty standard
deviations. Reports that share their directions lie off the axis by 0.1 on average, and 2,000 that do not, by 0.018.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import stats

from shoal.entropy import Entropy, SeededEntropy
from shoal.mechanisms.closest import KClosest
from shoal.mechanisms.coins import Coin
from shoal.mechanisms.directions import directions
from shoal.privacy.events import LOCAL_PERSON
from shoal.protocols.ddml.step import ClosestStep
from statistical.harness import catches, fits, is_mean, statistical

ALPHA = 1e-9
N = 6_000
P = 8
AXIS = np.ones(P) / math.sqrt(P)
CLOSEST = KClosest(4.0, P, LOCAL_PERSON)

Floats = npt.NDArray[np.float64]


class Swapped(KClosest):
    """Near and far directions change their chances."""

    def __init__(self) -> None:
        super().__init__(4.0, P, LOCAL_PERSON)
        self._is_near = Coin.dyadic(2**64 - self._setting.near)


class Reused(KClosest):
    """The directions are drawn once and for all."""

    def __init__(self) -> None:
        super().__init__(4.0, P, LOCAL_PERSON)
        self._public = directions(self.n_directions, P, SeededEntropy("reused"))

    def randomise(self, direction: Floats, entropy: Entropy) -> Floats:
        reported: Floats = self._public[self.choose(self.products(self._public, direction), entropy)].astype(np.float64)
        return reported / float(np.linalg.norm(reported))


def reports_of(mechanism: KClosest, n: int, entropy: Entropy) -> Floats:
    return np.array([mechanism.randomise(AXIS, entropy) for _ in range(n)])


def follows(alignments: Floats) -> bool:
    """Whether fifty cells, equally likely by the law of the claimed mechanism, are equally full."""
    chances = np.interp(alignments, *CLOSEST._law)
    return fits(np.bincount((50 * chances).astype(int), minlength=50), np.full(50, 1 / 50), ALPHA / 2)


@statistical(alpha=ALPHA)
def test_a_population_is_aligned_as_reports_are(entropy):
    assert follows(CLOSEST.alignments(10 * N, entropy))
    assert follows(reports_of(CLOSEST, N, entropy) @ AXIS)
    for mutant in (KClosest(2.0, P, LOCAL_PERSON), Swapped()):
        assert catches(lambda mutant=mutant: follows(reports_of(mutant, N // 3, entropy) @ AXIS))
        assert catches(lambda mutant=mutant: follows(mutant.alignments(N, entropy)))


@statistical(alpha=ALPHA)
def test_a_report_over_its_alignment_is_the_direction_on_average(entropy):
    """Along it, and in any one direction across."""
    values, chances = CLOSEST._law
    along = math.sqrt(np.interp(np.linspace(0, 1, 200_001), chances, values).var())
    across_axis = np.repeat([1, -1, 0], [1, 1, P - 2]) / math.sqrt(2)
    across = math.sqrt((1 - CLOSEST.alignment**2 - along**2) / (P - 1))

    def is_unbiased(mechanism: KClosest, n: int) -> bool:
        reports = reports_of(mechanism, n, entropy)
        is_along = is_mean(reports @ AXIS / CLOSEST.alignment, 1.0, along / CLOSEST.alignment, ALPHA / 2)
        return is_along and is_mean(reports @ across_axis, 0.0, across, ALPHA / 2)

    assert is_unbiased(CLOSEST, N)
    assert catches(lambda: is_unbiased(KClosest(2.0, P, LOCAL_PERSON), N // 3))


@statistical(alpha=ALPHA)
def test_two_reports_of_a_device_have_nothing_in_common_but_the_direction(entropy):
    """What lies across the direction is uniform around it, and averages out as independent vectors do."""

    def share_nothing(mechanism: KClosest, n: int) -> bool:
        reports = reports_of(mechanism, n, entropy)
        across = reports - np.outer(reports @ AXIS, AXIS)
        statistic = (P - 1) * (across.sum(axis=0) ** 2).sum() / (across**2).sum()
        return bool(stats.chi2.sf(statistic, P - 1) >= ALPHA)

    assert share_nothing(CLOSEST, N)
    assert catches(lambda: share_nothing(Reused(), N // 3))


@statistical(alpha=ALPHA)
def test_a_step_is_the_clipped_gradient_on_average(entropy):
    """For a gradient shorter than the clip, for a longer one, and for none."""

    class Straight(ClosestStep):
        """A short gradient is taken for one that reaches the clip."""

        def draw(self, gradient: Floats, entropy: Entropy) -> npt.NDArray[np.int64]:
            return super().draw(gradient * 1e6, entropy)

    def is_right(step: ClosestStep, size: float, n: int) -> bool:
        along = np.array([step.draw(size * AXIS, entropy) for _ in range(n)]) @ AXIS
        values, chances = CLOSEST._law
        square = float(np.mean(np.interp(np.linspace(0, 1, 200_001), chances, values) ** 2)) * step.reach**2
        mean = -step.scale * min(size, step.clip)
        return is_mean(along, mean, math.sqrt(square - mean**2), ALPHA / 3)

    honest, straight = (kind(100_000.0, 0.5, CLOSEST) for kind in (ClosestStep, Straight))
    assert all(is_right(honest, size, N) for size in (0.2, 3.0, 0.0))
    assert catches(lambda: is_right(straight, 0.2, N // 3))
