"""The mechanisms that can be audited: how each is built, its worst neighbouring inputs, and its outputs as integers.

An output may be named by less than all of it (the two cells that matter, of many): what is left out can only lower the bound.
Reports are drawn one by one, as on a participant's device; counts and choices by the vector, as in a release.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from shoal.audit.bound import EpsilonBound, Keys, bound_epsilon, check_effort
from shoal.entropy import Entropy, SeededEntropy
from shoal.errors import UsageError
from shoal.mechanisms.calibrate import mechanism as frequency_mechanism
from shoal.mechanisms.closest import KClosest
from shoal.mechanisms.directions import directions
from shoal.mechanisms.exponential import CountScore, ExponentialMechanism
from shoal.mechanisms.gaussian import DiscreteGaussian
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.noisy_max import NoisyMax
from shoal.mechanisms.reports import FrequencyMechanism, check_cardinality
from shoal.mechanisms.sensitivity import Histogram
from shoal.mechanisms.shared_gaussian import SharedGaussian
from shoal.mechanisms.shares import SharedLaplace, SharedMax
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Scope, Unit
from shoal.privacy.zcdp import epsilon_to_rho

SAMPLES = 500_000
"""Outputs drawn for each of the two neighbours: the bound then comes within a tenth of epsilon 1."""
GAUSSIAN_DELTA = 1e-6
HONEST = 3
"""Shares of the noise of a sum: as many as it is made for, so that the claim is tight."""

_BLOCK = 1 << 20
_RELEASE = Scope(Unit.RECORD, Relation.ADD_REMOVE, "all who read the release")


@dataclass(frozen=True, slots=True)
class Subject:
    """A mechanism with a claim, ready to be asked about one of two neighbouring inputs.

    Parameters
    ----------
    event
        The claim.
    draw
        ``draw(which, n, entropy)``: n outputs for input 0 or 1, named by integers.
    """

    event: Event
    draw: Callable[[int, int, Entropy], Keys]


def of_reports(mechanism: FrequencyMechanism) -> Subject:
    """One person whose value is cell 0, or cell 1; of a report it matters which of the two cells it supports."""

    def support(report: int | bytes) -> int:
        return report if isinstance(report, int) else report[0] & 3

    def draw(which: int, n: int, entropy: Entropy) -> Keys:
        return np.fromiter((support(mechanism.report(which, entropy)) for _ in range(n)), np.int64, n)

    return Subject(mechanism.event(), draw)


def of_counts(mechanism: DiscreteLaplace | DiscreteGaussian) -> Subject:
    """A count of no rows, or of one."""
    return Subject(mechanism.event(), lambda which, n, entropy: mechanism.randomise_many(np.full(n, which), entropy))


def of_sums(mechanism: SharedLaplace | SharedGaussian) -> Subject:
    """A sum of no rows, or of one, with the shares of as many databases as the claim needs."""
    return Subject(mechanism.event(), lambda which, n, entropy: which + _all_shares(mechanism, n, entropy))


def of_choices(mechanism: ExponentialMechanism | NoisyMax | SharedMax, n_candidates: int) -> Subject:
    """Candidates without a row, or one row that counts for the last, which loses ties; with more of them the ratio nears the claim."""

    step = max(1, _BLOCK // n_candidates)

    def choose(which: int, n: int, entropy: Entropy) -> Keys:
        scores = np.zeros((n, n_candidates), np.int64)
        scores[:, -1] = which
        if isinstance(mechanism, SharedMax):
            noise = _all_shares(mechanism, scores.size, entropy).reshape(scores.shape)
            return np.asarray(np.argmax(scores + noise, axis=1), np.int64)
        return mechanism.choose_many(scores, entropy)

    def draw(which: int, n: int, entropy: Entropy) -> Keys:
        return np.concatenate([choose(which, min(step, n - start), entropy) for start in range(0, n, step)])

    return Subject(mechanism.event(), draw)


def of_directions(mechanism: KClosest) -> Subject:
    """One axis, or its opposite; the directions to choose from are published, once for all reports, so that nothing hides the choice."""

    def draw(which: int, n: int, entropy: Entropy) -> Keys:
        public = directions(mechanism.n_directions, mechanism.dimension, SeededEntropy("directions of an audit"))
        products = mechanism.products(public, (1 - 2 * which) * np.eye(1, mechanism.dimension)[0])
        return np.fromiter((mechanism.choose(products, entropy) for _ in range(n)), np.int64, n)

    return Subject(mechanism.event(), draw)


def _all_shares(mechanism: SharedLaplace | SharedGaussian | SharedMax, n: int, entropy: Entropy) -> Keys:
    """The sum of the shares of n_honest databases, each drawn by itself as in a study."""
    return np.asarray(sum(mechanism.share(n, entropy) for _ in range(mechanism.n_honest)))


def _shared_gaussian(epsilon: float) -> SharedGaussian:
    return SharedGaussian(epsilon_to_rho(epsilon, GAUSSIAN_DELTA), GAUSSIAN_DELTA, Histogram(), _RELEASE, HONEST, dimension=1)


def _reports(name: str, epsilon: float, cardinality: int) -> Subject:
    return of_reports(frequency_mechanism(name, epsilon, cardinality))


SUBJECTS: dict[str, Callable[[float, int], Subject]] = {
    **{name: partial(_reports, name) for name in ("random-response", "rappor", "pq", "subset-selection")},
    "k-closest": lambda epsilon, m: of_directions(KClosest(epsilon, m, LOCAL_PERSON)),
    "discrete-laplace": lambda epsilon, _: of_counts(DiscreteLaplace(epsilon, Histogram(), _RELEASE)),
    "discrete-gaussian": lambda epsilon, _: of_counts(DiscreteGaussian(epsilon, GAUSSIAN_DELTA, Histogram(), _RELEASE)),
    "exponential": lambda epsilon, m: of_choices(ExponentialMechanism(epsilon, CountScore(), _RELEASE), m),
    "noisy-max": lambda epsilon, m: of_choices(NoisyMax(epsilon, CountScore(), _RELEASE), m),
    "laplace-shares": lambda epsilon, _: of_sums(SharedLaplace(epsilon, Histogram(), _RELEASE, HONEST)),
    "gaussian-shares": lambda epsilon, _: of_sums(_shared_gaussian(epsilon)),
    "noisy-max-shares": lambda epsilon, m: of_choices(SharedMax(epsilon, CountScore(), _RELEASE, HONEST), m),
}
"""Name -> the subject for an epsilon and a number of cells (or of candidates, or of weights; counts have no use for it)."""


def subject(name: str, epsilon: float, cardinality: int) -> Subject:
    """The mechanism of that name, set up for an audit."""
    if name not in SUBJECTS:
        raise UsageError("USAGE-001", f"There is no mechanism {name!r} to audit.", fix=f"Choose one of: {', '.join(SUBJECTS)}.")
    return SUBJECTS[name](epsilon, check_cardinality(cardinality))


def audit(subject: Subject, samples: int, confidence: float, entropy: Entropy) -> EpsilonBound:
    """A lower bound on the epsilon of a subject, which holds with the given confidence."""
    check_effort(samples, confidence, SAMPLES)
    first, second = (subject.draw(which, samples, entropy) for which in (0, 1))
    return bound_epsilon(first, second, 1 - confidence, subject.event.delta)
