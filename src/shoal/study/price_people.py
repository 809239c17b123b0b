"""What one person or one device releases: AnonML's answers and DDML's updates."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction

from shoal.domain import Numeric, Schema
from shoal.mechanisms.calibrate import best
from shoal.mechanisms.gaussian import DiscreteGaussian
from shoal.mechanisms.laplace import DiscreteLaplace
from shoal.mechanisms.sensitivity import ClippedVector
from shoal.names import counted
from shoal.privacy.events import Event, Unit
from shoal.privacy.rounding import float_from_grains, grains_up, share, sum_up
from shoal.protocols.anonml.analysis import table_errors
from shoal.protocols.anonml.params import Plus
from shoal.protocols.anonml.script import Script
from shoal.study.parts import Release
from shoal.study.priced import Forecast, most_counted_cells, n_cells, scope_of, unpriceable
from shoal.study.settings import DDML
from shoal.study.spec import Study

# The shares of a table add up to 1.
_HALF_OF_ALL = 0.5


def price_anonml(study: Study, script: Script) -> list[Release]:
    """AnonML: what the script says that its questions cost, which is what a ledger is charged.

    Notes
    -----
    Ref: AnonML §VI-A and §VII-D, equation 6; errata A-06.

    Privacy
    -------
    Unit person, replace, against everyone. The question is drawn without a look at the row, so an answer costs its own epsilon.
    """
    counts = Counter((_in_words(script, name), event) for name, event in script.prices.items())
    return [Release(name, event, count) for (name, event), count in counts.items()] + free_answers(study)


def _in_words(script: Script, name: str) -> str:
    kind, _, number = name.partition("/")
    if isinstance(script.params, Plus):
        return "one randomised answer to one question"
    if kind == "median":
        return f"a perturbed bit for the median of {number}"
    return f"a perturbed table of {counted(script.params.subset_size, 'feature')} and the label"


def free_answers(study: Study) -> list[Release]:
    """The answers that the analyst may ask for freely, under ``[queries]``."""
    if study.queries is None:
        return []
    cells = most_counted_cells(study, study.queries)
    event = best(study.queries.epsilon_release, cells, study.participation.size).event()
    return [Release("a randomised answer to a free question", event.reading(*study.queries.features), study.queries.n_queries)]


def paper_total(study: Study, script: Script | None) -> float | None:
    """The total of equation 6, which the paper's variant may be accounted by; None for other studies.

    Notes
    -----
    Ref: AnonML equation 6: the larger of what one feature and what the label spend. It holds if features are independent (errata A-06).
    Free questions may be about that feature and about the label, and are added to both.
    """
    if script is None or isinstance(script.params, Plus):
        return None
    tables = [event.epsilon for name, event in script.prices.items() if name.startswith("table/")]
    medians = [event.epsilon for name, event in script.prices.items() if name.startswith("median/")]
    free = [release.event.epsilon for release in free_answers(study) for _ in range(release.count)]
    return max(sum_up([tables[0], *medians[:1], *free]), sum_up([*tables, *free]))


def forecast_anonml(script: Script, n_people: int) -> list[Forecast]:
    """Expected error of the tables from so many people, the smallest first.

    Notes
    -----
    Ref: AnonML Theorem 2, equation 4; errata A-04.
    """
    return [
        Forecast(
            f"root mean square error (L2) of the shares in a table of {counted(table.cells, 'cell')} "
            f"from {counted(table.answers, 'answer')} ({table.mechanism})",
            table.error,
            useless_from=_HALF_OF_ALL,
        )
        for table in table_errors(script, n_people)
    ]


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


def _n_labels(study: Study) -> int:
    return len(study.label.values or ()) or 1
