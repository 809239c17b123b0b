"""What an organisation releases about one record or person in a PFDS study: its tables and trees."""

from __future__ import annotations

import math
from fractions import Fraction

from shoal.mechanisms.exponential import CountScore, ExponentialMechanism
from shoal.mechanisms.gaussian import DiscreteGaussian
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import ClippedVector, Histogram, Query
from shoal.privacy.events import Event
from shoal.privacy.rounding import share
from shoal.privacy.zcdp import epsilon_to_rho, rho_to_epsilon
from shoal.study.parts import Release
from shoal.study.priced import Forecast, most_counted_cells, n_cells, scope_of, unpriceable
from shoal.study.settings import PFDS
from shoal.study.spec import Study

_CELLS_OF_A_NUMBER = 8
"""Equal widths into which a number without public bins is cut, by a rule that looks at nothing private."""
_NARROWEST_SHARE = 4
"""Standard deviation from which sums of discrete Gaussians are Gaussian to all digits (Kairouz, Liu, Steinke 2021)."""
_GRID = 256
"""Residuals are rounded to multiples of 1/256, and so are soft labels."""


def price_pfds(study: Study) -> list[Release]:
    """PFDS: the tree and the level counts of the paper, or the tables of plus.

    Notes
    -----
    Ref: PFDS Theorem 3.3: epsilon / 2 for the tree (h_max steps on a path) and epsilon / 2 for the counts of p - 1 levels.

    Privacy
    -------
    Unit record (or person), add-remove, against all who read the release.
    """
    settings = _pfds(study)
    if study.variant == "paper":
        releases = _pfds_paper(study, settings)
    elif study.trust == "local":
        q = _tables_per_holder(study)
        releases = [Release("a table of one attribute and the label", _counts(study, Fraction(1, q)), q)]
    else:
        releases = _pfds_sums(study)
    return releases + _free_counts(study)


def _pfds_paper(study: Study, settings: PFDS) -> list[Release]:
    h_max, p = settings.max_depth or 2, settings.n_levels or 2
    step = Fraction(1, 2 * h_max)
    split = ExponentialMechanism(share(study.privacy.epsilon, step), CountScore(study.max_rows), scope_of(study))
    return [
        Release("the choice of a split", _reads_all(study, split.event()), h_max - 1),
        Release("the classes in a leaf", _counts(study, step)),
        Release("the number of records in a node of a level", _counts(study, Fraction(1, 2 * (p - 1))), p - 1),
    ]


def _tables_per_holder(study: Study) -> int:
    """q, which balances the noise of more tables against the sampling error of fewer holders per table."""
    k, m, n = len(study.feature), _pfds(study).n_holders, study.participation.size
    return min(k, max(round(0.015 * study.privacy.epsilon * n / m), -(-2 * k // m), 1))


def _pfds_sums(study: Study) -> list[Release]:
    """Tables of all attributes, a calibration, residual rounds where the noise allows them, and a line search over what they found."""
    k, epsilon, delta = len(study.feature), study.privacy.epsilon, study.privacy.delta
    # Counts in units of 1/256 as well: with Gaussian noise the shares of many holders stay wide enough to add up to a Gaussian.
    tables, rows = Histogram(k, _GRID * study.max_rows), Histogram(1, _GRID * study.max_rows)
    # A residual of at most 1/2 enters one cell of each attribute.
    residual = ClippedVector(_GRID // 2 * k * study.max_rows, 1, _n_cells_in_all(study))
    if delta > 0:
        residual = ClippedVector(math.isqrt(k * (_GRID // 2 * study.max_rows) ** 2 - 1) + 1, 2, _n_cells_in_all(study))
        nu = math.sqrt(k / (2 * epsilon_to_rho(epsilon, delta))) / study.participation.size
        n_rounds = 6 if nu <= 0.0005 else 3 if nu <= 0.002 else 1 if nu <= 0.005 else 0
    else:
        nu = math.sqrt(2) * k / (epsilon * study.participation.size)
        n_rounds = 1 if nu <= 0.004 else 0
    parts = (Fraction(8, 9), Fraction(1, 9), Fraction(0), Fraction(0)) if n_rounds == 0 else _parts(40, 5, 45, 10)
    parts = _parts(20, 5, 65, 10) if n_rounds >= 3 else parts
    releases = [
        Release("sums of the tables of all attributes and the label", _sum(study, parts[0], tables)),
        Release("sums of a table of scores", _sum(study, parts[1], rows)),
    ]
    if n_rounds:
        releases += [
            Release("sums of residuals", _sum(study, parts[2] / n_rounds, residual), n_rounds),
            Release("sums of a second table of scores", _sum(study, parts[3], rows)),
        ]
    return releases


def _parts(*hundredths: int) -> tuple[Fraction, ...]:
    return tuple(Fraction(part, 100) for part in hundredths)


def _sum(study: Study, part: Fraction, query: Query) -> Event:
    """A secure sum that costs a part of the budget: of epsilon, or of rho where there is a delta."""
    epsilon, delta = study.privacy.epsilon, study.privacy.delta
    if delta == 0:
        return _reads_all(study, DiscreteLaplace(share(epsilon, part), query, scope_of(study)).event())
    # A hair less than the part leaves room for the rounding of the two conversions.
    rho = epsilon_to_rho(epsilon, delta) * float(part) * (1 - 1e-9)
    noise = DiscreteGaussian(rho_to_epsilon(rho, delta), delta, query, scope_of(study))
    n_honest = _pfds(study).n_holders - _pfds(study).max_colluders
    if noise.sigma_squared < _NARROWEST_SHARE**2 * n_honest:
        raise unpriceable(
            f"The noise of {n_honest} honest holders would be in shares of {math.sqrt(noise.sigma_squared / n_honest):.2f}.",
            why=f"Discrete Gaussians below {_NARROWEST_SHARE} do not add up to one, and the sum would be less private than it says.",
            fix="Use a smaller epsilon, or delta = 0.",
        )
    return _reads_all(study, noise.event())


def forecast_pfds(study: Study) -> list[Forecast]:
    """Noise of one cell of a pooled table, as a share of all rows, at the declared size."""
    if study.variant == "paper":
        return []
    k, n, m = len(study.feature), study.participation.size, _pfds(study).n_holders
    if study.trust == "local":
        q = _tables_per_holder(study)
        noise = math.sqrt(m * q / k * _laplace(study, share(study.privacy.epsilon, Fraction(1, q))).variance()) / (n * q / k)
    else:
        table = _pfds_sums(study)[0].event
        size = table.parameters["scale"] if study.privacy.delta == 0 else table.parameters["sigma"]
        noise = float(size) / _GRID * (math.sqrt(2) if study.privacy.delta == 0 else 1.0) / n
    # No table has fewer than four cells, two of the attribute by two of the label.
    return [Forecast("noise on one cell of a pooled table, as a share of its rows (standard deviation)", noise, useless_from=0.25)]


def _free_counts(study: Study) -> list[Release]:
    if study.queries is None:
        return []
    most_counted_cells(study, study.queries)
    event = _laplace(study, study.queries.epsilon_release).event().reading(*study.queries.features)
    return [Release("the answer to a free count", event, study.queries.n_queries)]


def _counts(study: Study, part: Fraction) -> Event:
    return _reads_all(study, _laplace(study, share(study.privacy.epsilon, part)).event())


def _laplace(study: Study, epsilon_release: float) -> DiscreteLaplace:
    return DiscreteLaplace(epsilon_release, Histogram(1, study.max_rows), scope_of(study))


def _reads_all(study: Study, event: Event) -> Event:
    return event.reading(*study.schema().names, study.label.name)


def _n_cells_in_all(study: Study) -> int:
    return sum(n_cells(feature, _CELLS_OF_A_NUMBER) for feature in study.schema().features)


def _pfds(study: Study) -> PFDS:
    if study.pfds is None:
        raise unpriceable("There is no table [pfds] to price.")
    return study.pfds
