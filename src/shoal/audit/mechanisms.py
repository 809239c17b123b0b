"""Audited mechanisms: construction, worst neighbouring inputs, and outputs as integers.

``shoal audit mechanism`` calls `make_target` and `audit_mechanism`. The integer may describe only
a part of an output (the two cells that matter, of many): this can only lower the bound. Reports
are drawn one by one, as on a participant's device; counts and choices are drawn as vectors, as in
a release.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from shoal.audit.bound import EpsilonBound, Keys, bound_epsilon, check_effort
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import UsageError
from shoal.mechanisms.calibrate import make_mechanism as frequency_mechanism
from shoal.mechanisms.distributed_gaussian import DistributedGaussian
from shoal.mechanisms.distributed_laplace import DistributedLaplace, DistributedNoisyMax
from shoal.mechanisms.exponential import CountScore, ExponentialMechanism
from shoal.mechanisms.frequency_oracle import FrequencyOracle, check_cardinality
from shoal.mechanisms.gaussian import DiscreteGaussian
from shoal.mechanisms.k_closest import KClosest, draw_directions
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.noisy_max import NoisyMax
from shoal.mechanisms.sensitivity import CellCounts
from shoal.privacy.accountant import epsilon_to_rho
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Scope, Unit

SAMPLES = 500_000
"""Outputs drawn for each neighbour. The bound is then within a tenth of epsilon 1."""
GAUSSIAN_DELTA = 1e-6
N_HONEST = 3
"""Noise shares in a sum: the number that the mechanism is made for, so that the claim is tight."""

_BLOCK = 1 << 20
_RELEASE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")


@dataclass(frozen=True, slots=True)
class AuditTarget:
    """A mechanism with its claim and two neighbouring inputs.

    Parameters
    ----------
    event
        The claim.
    draw
        ``draw(which, n, entropy)``: n outputs for input 0 or 1, named by integers.
    """

    event: Event
    draw: Callable[[int, int, Entropy], Keys]


def make_report_target(mechanism: FrequencyOracle) -> AuditTarget:
    """Return the target of one person's report, with the value in cell 0 or in cell 1.

    An output is described by which of the two cells the report supports.
    """

    def support(report: int | bytes) -> int:
        return report if isinstance(report, int) else report[0] & 3

    def draw(which: int, n: int, entropy: Entropy) -> Keys:
        return np.fromiter(
            (support(mechanism.report(which, entropy)) for _ in range(n)), np.int64, n
        )

    return AuditTarget(mechanism.event(), draw)


def make_count_target(mechanism: DiscreteLaplace | DiscreteGaussian) -> AuditTarget:
    """Return the target of a count of no rows or of one row."""
    return AuditTarget(
        mechanism.event(),
        lambda which, n, entropy: mechanism.randomise_many(np.full(n, which), entropy),
    )


def make_sum_target(mechanism: DistributedLaplace | DistributedGaussian) -> AuditTarget:
    """Return the target of a sum of no rows or of one row, with n_honest noise shares."""
    return AuditTarget(
        mechanism.event(), lambda which, n, entropy: which + _draw_all_shares(mechanism, n, entropy)
    )


def make_choice_target(
    mechanism: ExponentialMechanism | NoisyMax | DistributedNoisyMax, n_candidates: int
) -> AuditTarget:
    """Return the target of a choice among candidates, without a row or with one.

    The row counts for the last candidate, which loses ties. With more candidates the ratio
    approaches the claim.
    """
    step = max(1, _BLOCK // n_candidates)

    def choose(which: int, n: int, entropy: Entropy) -> Keys:
        scores = np.zeros((n, n_candidates), np.int64)
        scores[:, -1] = which
        if isinstance(mechanism, DistributedNoisyMax):
            noise = _draw_all_shares(mechanism, scores.size, entropy).reshape(scores.shape)
            return np.asarray(np.argmax(scores + noise, axis=1), np.int64)
        return mechanism.choose_many(scores, entropy)

    def draw(which: int, n: int, entropy: Entropy) -> Keys:
        return np.concatenate(
            [choose(which, min(step, n - start), entropy) for start in range(0, n, step)]
        )

    return AuditTarget(mechanism.event(), draw)


def make_direction_target(mechanism: KClosest) -> AuditTarget:
    """Return the target of a report of one axis or of its opposite.

    The directions to choose from are public and the same for all reports, so that they do not hide
    the choice.
    """

    def draw(which: int, n: int, entropy: Entropy) -> Keys:
        public = draw_directions(
            mechanism.n_directions, mechanism.dimension, SeededEntropy("directions of an audit")
        )
        products = mechanism.compute_products(
            public, (1 - 2 * which) * np.eye(1, mechanism.dimension)[0]
        )
        return np.fromiter((mechanism.choose(products, entropy) for _ in range(n)), np.int64, n)

    return AuditTarget(mechanism.event(), draw)


def _draw_all_shares(
    mechanism: DistributedLaplace | DistributedGaussian | DistributedNoisyMax,
    n: int,
    entropy: Entropy,
) -> Keys:
    """Return the sum of the shares of n_honest databases, each drawn separately as in a study."""
    return np.asarray(sum(mechanism.draw_share(n, entropy) for _ in range(mechanism.n_honest)))


def _make_distributed_gaussian(epsilon: float) -> DistributedGaussian:
    return DistributedGaussian(
        epsilon_to_rho(epsilon, GAUSSIAN_DELTA),
        GAUSSIAN_DELTA,
        CellCounts(),
        _RELEASE,
        N_HONEST,
        dimension=1,
    )


def _make_named_report_target(name: str, epsilon: float, cardinality: int) -> AuditTarget:
    return make_report_target(frequency_mechanism(name, epsilon, cardinality))


TARGETS: dict[str, Callable[[float, int], AuditTarget]] = {
    **{
        name: partial(_make_named_report_target, name)
        for name in ("random-response", "rappor", "pq", "subset-selection")
    },
    "k-closest": lambda epsilon, m: make_direction_target(KClosest(epsilon, m, LOCAL_PERSON)),
    "discrete-laplace": lambda epsilon, _: make_count_target(
        DiscreteLaplace(epsilon, CellCounts(), _RELEASE)
    ),
    "discrete-gaussian": lambda epsilon, _: make_count_target(
        DiscreteGaussian(epsilon, GAUSSIAN_DELTA, CellCounts(), _RELEASE)
    ),
    "exponential": lambda epsilon, m: make_choice_target(
        ExponentialMechanism(epsilon, CountScore(), _RELEASE), m
    ),
    "noisy-max": lambda epsilon, m: make_choice_target(
        NoisyMax(epsilon, CountScore(), _RELEASE), m
    ),
    "laplace-shares": lambda epsilon, _: make_sum_target(
        DistributedLaplace(epsilon, CellCounts(), _RELEASE, N_HONEST)
    ),
    "gaussian-shares": lambda epsilon, _: make_sum_target(_make_distributed_gaussian(epsilon)),
    "noisy-max-shares": lambda epsilon, m: make_choice_target(
        DistributedNoisyMax(epsilon, CountScore(), _RELEASE, N_HONEST), m
    ),
}
"""Name -> constructor of the target from epsilon and a number.

The number is that of cells, candidates or weights; counts ignore it.
"""


def make_target(name: str, epsilon: float, cardinality: int) -> AuditTarget:
    """Return the audit target of the mechanism of that name."""
    if name not in TARGETS:
        raise UsageError(
            "USAGE-001",
            f"There is no mechanism {name!r} to audit.",
            fix=f"Choose one of: {', '.join(TARGETS)}.",
        )
    return TARGETS[name](epsilon, check_cardinality(cardinality))


def audit_mechanism(
    target: AuditTarget, samples: int, confidence: float, entropy: Entropy
) -> EpsilonBound:
    """Return a lower bound on the epsilon of a target, with the given confidence."""
    check_effort(samples, confidence, SAMPLES)
    first, second = (target.draw(which, samples, entropy) for which in (0, 1))
    return bound_epsilon(first, second, 1 - confidence, target.event.delta)
