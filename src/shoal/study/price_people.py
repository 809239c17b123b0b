"""What one person or one device releases: AnonML's answers and DDML's updates."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from shoal.domain import Numeric, Schema
from shoal.mechanisms.calibrate import best
from shoal.mechanisms.gaussian import DiscreteGaussian
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.reports import FrequencyMechanism
from shoal.mechanisms.response import RandomResponse
from shoal.mechanisms.sensitivity import ClippedVector
from shoal.names import counted
from shoal.privacy.events import Event, Unit
from shoal.privacy.rounding import float_from_grains, grains_up, sum_up
from shoal.study.parts import Release
from shoal.study.priced import Forecast, most_counted_cells, n_cells, scope_of, share, unpriceable
from shoal.study.settings import DDML
from shoal.study.spec import Study

_GRID_CELLS = 10
"""Cells of the public grid of a number: its lowest value, four equal widths, four that grow, and missing."""
# The shares of a table add up to 1.
_HALF_OF_ALL = 0.5
_PAPERS_MECHANISMS = ("random-response", "rappor", "pq")


def price_anonml(study: Study) -> list[Release]:
    """AnonML: one answer with the whole budget, or the paper's several with a share each.

    Notes
    -----
    Ref: AnonML §VI-A and §VII-D, equation 6; errata A-06.

    Privacy
    -------
    Unit person, replace, against everyone. The question is drawn without a look at the row, so an answer costs its own epsilon.
    """
    releases = _histograms(study) if study.variant == "paper" else [_one_answer(study)]
    return releases + _free_answers(study)


def _free_answers(study: Study) -> list[Release]:
    if study.queries is None:
        return []
    cells = most_counted_cells(study, study.queries)
    event = best(study.queries.epsilon_release, cells, study.participation.size).event()
    return [Release("a randomised answer to a free question", event.reading(*study.queries.features), study.queries.n_queries)]


def _one_answer(study: Study) -> Release:
    """Which question a person draws is not known beforehand: the dearest one is charged."""
    events = [table.event() for table in _tables(study).values()]
    dearest = max(events, key=lambda event: event.epsilon)
    return Release("one randomised answer about one feature and the label", dearest.reading(*_columns(study)))


def _tables(study: Study) -> dict[int, FrequencyMechanism]:
    """The mechanism of each size of question; a number without public bins is asked about by one bit.

    Where messages are shuffled there is one phase, so that the crowd is everybody: such a number is cut by a public grid instead.
    """
    unbinned = _GRID_CELLS * _n_labels(study) if study.trust == "shuffled" else 2
    sizes = {feature.n_bins * _n_labels(study) if feature.n_bins else unbinned for feature in study.schema().features}
    return {size: best(study.privacy.epsilon, size, study.participation.size) for size in sorted(sizes)}


def _histograms(study: Study) -> list[Release]:
    n_subsets, n_medians = _n_subsets(study), len(_without_bins(study))
    epsilon_release = share(study.privacy.epsilon, Fraction(1, _price_divisor(study)))
    cells = _subset_cells(study)
    table = best(epsilon_release, cells, study.participation.size, _PAPERS_MECHANISMS)
    releases = [Release(f"a perturbed table of {cells} cells", table.event().reading(*_columns(study)), n_subsets)]
    if n_medians:
        median = RandomResponse(epsilon_release, 2).event().reading(*_without_bins(study))
        releases.append(Release("a perturbed bit for the median of a number", median, n_medians))
    return releases


def paper_total(study: Study) -> float | None:
    """The total of equation 6, which the paper's variant may be accounted by; None for other studies.

    Notes
    -----
    Ref: AnonML equation 6: the larger of what one feature and what the label spend. It holds if features are independent (errata A-06).
    Free questions may be about that feature and about the label, and are added to both.
    """
    if study.protocol != "anonml" or study.variant != "paper":
        return None
    table, *median = _histograms(study)
    free = [release.event.epsilon for release in _free_answers(study) for _ in range(release.count)]
    of_a_feature = sum_up([table.event.epsilon, *(release.event.epsilon for release in median), *free])
    return max(of_a_feature, sum_up([table.event.epsilon] * table.count + free))


def _price_divisor(study: Study) -> int:
    """How many releases share the budget: all of them, or those of the dearest feature or of the label in equation 6."""
    n_subsets, has_medians = _n_subsets(study), bool(_without_bins(study))
    if study.anonml is not None and study.anonml.accounting == "paper":
        return max(n_subsets, 1 + has_medians)
    return n_subsets + len(_without_bins(study))


def _n_subsets(study: Study) -> int:
    return study.anonml.n_subsets or 1 if study.anonml else 1


def _subset_cells(study: Study) -> int:
    """Cells of the largest table that the paper's aggregator may ask for; a number without bins is cut at its median."""
    size = study.anonml.subset_size or 1 if study.anonml else 1
    cells = sorted((n_cells(feature, 2) for feature in study.schema().features), reverse=True)
    return math.prod(cells[:size]) * _n_labels(study)


def forecast_anonml(study: Study, n_people: int | None = None) -> list[Forecast]:
    """Expected error of the tables from so many people, at the declared size where no number is given.

    Notes
    -----
    Ref: AnonML Theorem 2, equation 4; errata A-04.
    """
    people = n_people or study.participation.size
    if study.variant == "paper":
        n = max(1, people // (study.anonml.n_partitions or 1 if study.anonml else 1))
        cells = _subset_cells(study)
        table = best(share(study.privacy.epsilon, Fraction(1, _price_divisor(study))), cells, n, _PAPERS_MECHANISMS)
        return [_forecast(cells, table, n)]
    n = max(1, people // len(study.feature))
    return [_forecast(cells, table, n) for cells, table in _tables(study).items()][-4:]


def _forecast(cells: int, table: FrequencyMechanism, n: int) -> Forecast:
    what = f"root mean square error (L2) of the shares in a table of {counted(cells, 'cell')} from {counted(n, 'answer')} ({table.name})"
    return Forecast(what, table.expected_error(n), useless_from=_HALF_OF_ALL)


def price_ddml(study: Study) -> list[Release]:
    """DDML: a device's updates, which share its budget.

    Notes
    -----
    Ref: DDML §IV, whose epsilon speaks about one weight. An update of p weights then costs p times as much: `charged_as_update`.

    Privacy
    -------
    Unit update (or weight), replace, against everyone who sees an update.
    """
    if study.queries is not None:
        raise unpriceable(
            "[queries] cannot be priced in a ddml study.",
            why="Its unit is an update; counts of a device's rows would protect another unit, and the two are never added.",
            fix="Ask for counts in a study of their own, with protocol anonml.",
        )
    n_updates = study.privacy.n_updates
    event = _update(study, study.ddml or DDML(), share(study.privacy.epsilon, Fraction(1, n_updates)), n_weights(study))
    return [Release(f"a noisy update of {n_weights(study)} weights", event.reading(*_columns(study)), n_updates)]


def _update(study: Study, settings: DDML, epsilon_release: float, p: int) -> Event:
    scope = scope_of(study)
    clip = max(1, math.floor(settings.clip * 2**settings.fraction_bits))
    if study.unit is Unit.WEIGHT:
        return DiscreteLaplace(epsilon_release, ClippedVector(clip, 1, 1), scope).event()
    if study.privacy.delta > 0:
        # A hair less than the part, so that the sum of the parts rounds to no more than the whole.
        delta = study.privacy.delta / study.privacy.n_updates * (1 - 1e-9)
        return DiscreteGaussian(epsilon_release, delta, ClippedVector(clip, 2, p), scope).event()
    return DiscreteLaplace(epsilon_release, ClippedVector(clip, 1, p), scope).event()


def charged_as_update(event: Event, p: int) -> Event:
    """What an update of p weights costs its sender as a whole, where each weight alone is priced by the event."""
    scope = replace(event.scope, unit=Unit.UPDATE)
    epsilon = float_from_grains(p * grains_up(event.epsilon))
    return replace(event, parameters={**event.parameters, "weights": p}, scope=scope, epsilon=epsilon)


def n_weights(study: Study) -> int:
    """p: a constant, a weight for each number or cell, one for each combination of a cross; so many for each class of a multinomial one."""
    schema, settings = study.schema(), study.ddml or DDML()
    p = 1 + sum(_width(schema, name) for name in schema.names)
    p += sum(_width(schema, first) * _width(schema, second) for first, second in settings.crosses)
    return p * (_n_labels(study) if settings.link == "multinomial" else 1)


def _width(schema: Schema, name: str) -> int:
    feature = schema[name]
    return n_cells(feature, 1) if isinstance(feature, Numeric) else feature.n_bins


def _columns(study: Study) -> tuple[str, ...]:
    return (*study.schema().names, study.label.name)


def _without_bins(study: Study) -> list[str]:
    return [feature.name for feature in study.schema().features if feature.n_bins is None]


def _n_labels(study: Study) -> int:
    return len(study.label.values or ()) or 1
