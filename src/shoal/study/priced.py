"""Forecasts, and what cannot be priced."""

from __future__ import annotations

from dataclasses import dataclass

from shoal.errors import SpecError
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


def unpriceable(what: str, *, why: str | None = None, fix: str | None = None) -> SpecError:
    """The refusal of a study that asks for something without a price."""
    return SpecError("PLAN-001", what, why=why, fix=fix)


def most_counted_cells(study: Study, queries: Queries) -> int:
    """Cells of the largest feature that may be counted freely; where there are no public bins there is nothing to count."""
    schema, most = study.schema(), 0
    for name in queries.features:
        bins = schema[name].n_bins
        if bins is None:
            raise unpriceable(f"[queries] asks for counts of {name}, which has no public bins.", fix=f"Give {name} bins = [...]")
        most = max(most, bins)
    return most
