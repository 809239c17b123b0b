"""What a database releases about one record or person in an SDQ study, and what can be said about its noise before anything is summed."""

from __future__ import annotations

from shoal.protocols.sdq.noise import deviation_of
from shoal.protocols.sdq.queries import free_price
from shoal.protocols.sdq.script import Script
from shoal.study.parts import Release
from shoal.study.priced import Forecast, most_counted_cells
from shoal.study.sdq import free_of
from shoal.study.spec import Study

_QUESTIONS = {
    "sizes": "how many records are in each node of a level of the tree",
    "answers": "all counts of a level: of classes in leaves, of values and classes in other nodes",
    "choice": "the choice of the attribute to split on",
    "tables": "tables of every attribute and the label",
    "table": "one table of the chosen attributes and the label",
}
"""Kinds of questions, as scripts name them, in words for the label."""


def price_sdq(study: Study, script: Script) -> list[Release]:
    """SDQ: the dearest course of its script, and the free counts.

    Notes
    -----
    Nodes of a level hold different records, so that a record pays for one of them. Databases hold different records too, and each keeps a
    ledger of its own.

    Ref: SDQ §IV, Algorithm 3; errata S-09, S-13.

    Privacy
    -------
    Unit record (or person), add-remove, against whom the study's figures say: see `Params`.
    """
    releases = [Release(_QUESTIONS[_kind(question)], script.prices[question], count) for question, count in script.dearest]
    free = free_of(study)
    if study.queries is not None and free is not None:
        most_counted_cells(study, study.queries)
        releases.append(Release("the answer to a free count", free_price(script.params, free), free.n_queries))
    return releases


def forecast_sdq(script: Script) -> list[Forecast]:
    """Noise on a count of the last table, in records, at the declared number of rows and where every database answers."""
    params, (last, _) = script.params, script.dearest[-1]
    # Of all that the paper asks last, the classes of a leaf are one table.
    n_tables = len(params.arities) if _kind(last) == "tables" else 1
    # A tree that splits at all, or the table of an attribute, has at least so many counts; half of their mean is what tells classes apart.
    fewest = min(params.arities) * params.n_classes
    what = "noise on a count of the last table, in records (standard deviation)"
    return [Forecast(what, deviation_of(params, script.prices[last].epsilon, n_tables), useless_from=params.size / fewest / 2)]


def _kind(question: str) -> str:
    return question.partition("/")[0]
