"""What one person releases: AnonML's answers."""

from __future__ import annotations

from collections import Counter

from shoal.mechanisms.calibrate import best
from shoal.names import counted
from shoal.privacy.rounding import sum_up
from shoal.protocols.anonml.analysis import table_errors
from shoal.protocols.anonml.params import Plus
from shoal.protocols.anonml.script import Script
from shoal.study.parts import Release
from shoal.study.priced import Forecast, most_counted_cells
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
