"""The scope that a study's figures have, and forecasts."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.domain import Feature
from shoal.errors import SpecError
from shoal.privacy.events import Relation, Scope
from shoal.study.spec import Queries, Study


@dataclass(frozen=True)
class Forecast:
    """What can be said about the error before anything is spent: from public figures only.

    Parameters
    ----------
    what
        The quantity, in words.
    value
        Its expected size.
    useless_from
        The size from which on most of the result is noise.
    """

    what: str
    value: float
    useless_from: float


def scope_of(study: Study) -> Scope:
    """What the epsilon of organisations speaks about: unit, neighbouring relation, adversary."""
    return Scope(study.unit, Relation.ADD_REMOVE, _adversary(study))


def _adversary(study: Study) -> str:
    if study.pfds is not None and study.trust == "secure-sum":
        return f"all who read the release and up to {study.pfds.max_colluders} colluding holders"
    return "all who read the release"


def unpriceable(what: str, *, why: str | None = None, fix: str | None = None) -> SpecError:
    """The refusal of a study that asks for something without a price."""
    return SpecError("PLAN-001", what, why=why, fix=fix)


def n_cells(feature: Feature, otherwise: int) -> int:
    """Cells of a feature, the one for missing values included; ``otherwise`` cells where the protocol chooses the bins."""
    return otherwise + feature.missing if feature.n_bins is None else feature.n_bins


def most_counted_cells(study: Study, queries: Queries) -> int:
    """Cells of the largest feature that may be counted freely; where there are no public bins there is nothing to count."""
    schema, most = study.schema(), 0
    for name in queries.features:
        bins = schema[name].n_bins
        if bins is None:
            raise unpriceable(f"[queries] asks for counts of {name}, which has no public bins.", fix=f"Give {name} bins = [...]")
        most = max(most, bins)
    return most
