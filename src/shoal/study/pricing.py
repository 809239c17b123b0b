"""Releases and forecasts: the priced parts of a plan.

The protocol modules of this package make them, and the plan and the label print them. Amounts
spent are rounded up and limits are rounded down; a change must keep that.
"""

from __future__ import annotations

from dataclasses import dataclass

from shoal.errors import SpecError
from shoal.privacy.accountant import epsilon_to_rho, rho_to_epsilon
from shoal.privacy.events import Event
from shoal.privacy.rounding import format_epsilon, format_epsilon_down, from_grains, grains_up
from shoal.study.spec import Queries, Study
from shoal.text import clean_text

COUNT_BYTES = 8
"""Bytes of one count in a message."""


@dataclass(frozen=True, slots=True)
class PricedRelease:
    """One kind of release of a study.

    Parameters
    ----------
    name
        What is released, in a few words.
    event
        The price of one.
    count
        How many of them one unit pays for.
    """

    name: str
    event: Event
    count: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", clean_text(self.name))
        if self.count < 1:
            raise SpecError(
                "LABEL-001",
                f"A label cannot state {self.count} releases of {self.name!r}.",
                why="Each release is made at least once.",
            )

    def __str__(self) -> str:
        times, each = (f"{self.count} x ", " each") if self.count > 1 else ("", "")
        delta = f", delta {format_epsilon(self.event.delta)}" if self.event.delta else ""
        return (
            f"{times}{self.name} ({clean_text(self.event.mechanism)}): epsilon "
            f"{format_epsilon(self.event.epsilon)}{delta}{each}"
        )


@dataclass(frozen=True, slots=True)
class AmplifiedGuarantee:
    """The central guarantee against observers of the shuffled batch alone.

    See `shoal.privacy.amplification`.

    Parameters
    ----------
    n
        Honest messages in one batch.
    epsilon, delta
        The guarantee, for the same unit and relation.
    """

    n: int
    epsilon: float
    delta: float


@dataclass(frozen=True, slots=True)
class BudgetLine:
    """The participant's own limit and its use.

    Parameters
    ----------
    limit, used, after
        Epsilons: allowed, spent before, spent when this study is done. ``used`` and ``after`` are
        sums over all studies and protocols that the limit counts.
    period
        Such as ``"a year"`` or ``"in all"``.
    about
        What the limit counts, in words that can follow the period; may be empty.
    """

    limit: float
    used: float
    after: float
    period: str
    about: str = ""

    def __post_init__(self) -> None:
        for name in ("period", "about"):
            object.__setattr__(self, name, clean_text(getattr(self, name)))

    def __str__(self) -> str:
        about = f" {self.about}" if self.about else ""
        cost = from_grains(max(0, grains_up(self.after) - grains_up(self.used)))
        line = (
            f"epsilon {format_epsilon_down(self.limit)} {self.period}{about}; used "
            f"{format_epsilon(self.used)}; this study counts {format_epsilon(cost)}; after this "
            f"{format_epsilon(self.after)}"
        )
        return (
            f"{line}. This exceeds your limit: the ledger will refuse it."
            if self.after > self.limit
            else line
        )


@dataclass(frozen=True)
class Forecast:
    """An expected error, computed from public figures before anything is spent.

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


def make_pricing_error(what: str, *, why: str | None = None, fix: str | None = None) -> SpecError:
    """Return the error for a study with a release that has no price."""
    return SpecError("PLAN-001", what, why=why, fix=fix)


def count_max_query_cells(study: Study, queries: Queries) -> int:
    """Return the cells of the largest feature with free counts.

    A feature without public bins cannot be counted and raises ``PLAN-001``.
    """
    schema, max_bins = study.schema(), 0
    for name in queries.features:
        bins = schema[name].n_bins
        if bins is None:
            raise make_pricing_error(
                f"[queries] asks for counts of {name}, which has no public bins.",
                fix=f"Give {name} bins = [...]",
            )
        max_bins = max(max_bins, bins)
    return max_bins


def describe_overlap_cost(study: Study) -> str:
    """Return the cost for a person with rows in k of the databases.

    Notes
    -----
    In one secure sum such a person moves the same numbers k times as far: pure epsilon grows
    k-fold, rho by k squared.
    """
    epsilon, delta = study.privacy.epsilon, study.privacy.delta
    if not delta:
        return "k times this epsilon"
    two = rho_to_epsilon(4 * epsilon_to_rho(epsilon, delta), delta)
    return (
        "k times this epsilon and more, at the same delta (in two of them epsilon "
        f"{format_epsilon(two)})"
    )
