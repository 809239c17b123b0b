"""The privacy label: text, HTML and plain data from one statement.

`shoal check` and `shoal join` print it, and coordinators show it as a page. The first part is for
participants without technical training; the second, "For experts", has the precise statement.

Titles and other words come from an analyst who is not trusted. `Statement` cleans them when it is
made: it removes control characters, changes of writing direction, and invisible characters. The
views only lay the words out.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from shoal.errors import SpecError
from shoal.privacy.events import Relation, Scope, Unit
from shoal.privacy.rounding import (
    compute_delta_growth,
    float_from_grains,
    format_epsilon,
    from_grains,
    grains_up,
    sum_up,
)
from shoal.study.odds import Odds, compute_odds
from shoal.study.pricing import AmplifiedGuarantee, BudgetLine, PricedRelease
from shoal.study.protocol import UNDO
from shoal.study.registry import PROTOCOLS
from shoal.text import clean_text, display_width, format_count, format_utc, wrap_text

COLUMNS = 80
_HEAD = 12
_BODY = COLUMNS - _HEAD - 4

SIMULATED = "This is a simulation: it protected nothing, and nothing was sent."

_UNITS = {
    Unit.PERSON: "everything about one person (unit: person)",
    Unit.RECORD: "one row of the data (unit: record)",
    Unit.UPDATE: "everything that one model update reveals (unit: update)",
    Unit.WEIGHT: "one number of a model update alone, not the whole update (unit: weight)",
}
_UPDATES = "everything that all your model updates reveal together (unit: update)"
_RELATIONS = {
    Relation.REPLACE: "its value or any other value in its place (relation: replace)",
    Relation.ADD_REMOVE: "its presence or absence (relation: add-remove)",
}
_RELIANCE = {
    "local": "nobody: what you send is already protected, so you need to trust no one",
    "shuffled": "nobody for the first figure: what you send is already protected. The figure for "
    "the shuffled batch requires that messages cannot be linked to people",
}
"""Trust level -> the parties that the guarantee relies on, if no list of them is given."""

Row = tuple[str, tuple[str, ...]]
"""A heading and its paragraphs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """The data that a study asks of one participant, and its protection: prints as the label.

    Parameters
    ----------
    leaves, seen_by
        The data that leaves the participant, in words, and who sees it.
    scope, epsilon, delta, how
        The guarantee of everything together, and how it was composed. With delta 0 it is at least
        the plain sum of the releases. For the unit weight it is that of one weight of one update;
        `everything` is the whole.
    releases
        Each kind of release with its price and number.
    bytes
        Most bytes that leave; None if not known.
    digest
        Digest of the manifest; empty in a simulation.
    n_weights
        Number of weights of an update, for the unit weight: its releases are priced for each
        weight alone.
    max_rows
        Most rows of one unit that are used, if the participant is a database with rows of others;
        None if the participant answers for itself.
    colluders
        Of a secure sum: how many members may work together, and of how many; None for other trust.
    provided
        A further condition of the guarantee, in words that can follow "Provided that"; may be
        empty.
    paper_epsilon
        The total of a paper's own accounting, if it differs; stated in addition.
    shuffled
        The amplified guarantee, if delivery is shuffled.
    budget
        The participant's limit, if there is a ledger.
    closes
        When the study ends, in UTC; None if the study has no closing time.
    rests_on
        Assumptions about others, and the consequence if they fail.
    not_covered, undo
        Facts that the guarantee does not cover, and the effect of leaving.
    simulated
        True if everything happened in one process.

    Examples
    --------
    >>> from shoal.privacy.events import LOCAL_PERSON, Event
    >>> bit = PricedRelease("your answer", Event("random-response", {}, LOCAL_PERSON, 2.0))
    >>> words = dict.fromkeys(
    ...     ("title", "purpose", "contact", "protocol", "trust", "leaves", "seen_by"),
    ...     "in plain words",
    ... )
    >>> label = Statement(**words, scope=LOCAL_PERSON, epsilon=2.0, releases=(bit,))
    >>> "at most 88.1 of 100" in " ".join(str(label).split())
    True
    """

    title: str
    purpose: str
    contact: str
    protocol: str
    trust: str
    leaves: str
    seen_by: str
    scope: Scope
    epsilon: float
    releases: tuple[PricedRelease, ...]
    delta: float = 0.0
    how: str = "plain sum"
    bytes: int | None = None
    digest: str = ""
    n_weights: int | None = None
    max_rows: int | None = None
    colluders: tuple[int, int] | None = None
    provided: str = ""
    paper_epsilon: float | None = None
    shuffled: AmplifiedGuarantee | None = None
    budget: BudgetLine | None = None
    closes: datetime | None = None
    rests_on: tuple[str, ...] = field(default=())
    not_covered: tuple[str, ...] = field(default=())
    undo: str = UNDO
    simulated: bool = False

    def __post_init__(self) -> None:
        for name in (
            "title",
            "purpose",
            "contact",
            "protocol",
            "trust",
            "leaves",
            "seen_by",
            "how",
            "digest",
            "provided",
            "undo",
        ):
            object.__setattr__(self, name, clean_text(getattr(self, name)))
        for name in ("rests_on", "not_covered"):
            object.__setattr__(self, name, tuple(clean_text(item) for item in getattr(self, name)))
        object.__setattr__(
            self, "scope", replace(self.scope, adversary=clean_text(self.scope.adversary))
        )
        stated = grains_up(self.epsilon)
        kind = (self.scope.unit, self.scope.relation)
        if any(
            (release.event.scope.unit, release.event.scope.relation) != kind
            for release in self.releases
        ):
            raise SpecError(
                "LABEL-001",
                f"A label for unit {self.scope.unit}, relation {self.scope.relation} cannot list a "
                "release for another unit or relation.",
                why="An epsilon holds for one unit and one neighbouring relation.",
            )
        prices = [grains_up(release.event.epsilon) for release in self.releases]
        least = self._plain_grains if self._n_priced_weights is None else max(prices, default=0)
        if self.delta == 0 and stated < least:
            raise SpecError(
                "LABEL-001",
                f"A label cannot state epsilon {format_epsilon(self.epsilon)} for releases that "
                f"add up to {format_epsilon(from_grains(least))}.",
                why="Without a delta the guarantee is at least the plain sum.",
            )

    @property
    def _n_priced_weights(self) -> int | None:
        """Weights of an update, if each is priced alone."""
        return self.n_weights if self.scope.unit is Unit.WEIGHT else None

    @property
    def _n_releases(self) -> int:
        return sum(release.count for release in self.releases)

    @property
    def _plain_grains(self) -> int:
        return (self._n_priced_weights or 1) * sum(
            release.count * grains_up(release.event.epsilon) for release in self.releases
        )

    @property
    def plain_sum(self) -> float:
        """The plain sum of all epsilons; over all weights if each is priced alone."""
        return float_from_grains(self._plain_grains)

    @property
    def everything(self) -> tuple[float, float]:
        """Epsilon and delta of all that is sent.

        It is the guarantee, or for the unit weight the sum over all weights of all updates.

        Notes
        -----
        Ref: errata D-01, D-15.
        """
        if self._n_priced_weights is None:
            return self.epsilon, self.delta
        delta = sum_up(
            release.event.delta for release in self.releases for _ in range(release.count)
        )
        return self.plain_sum, min(1.0, self._n_priced_weights * delta * (1 + 1e-14))

    @property
    def counted(self) -> tuple[float, float]:
        """Epsilon and delta of all that is sent, as a ledger counts them: under replace.

        Notes
        -----
        Ref: docs/theory/proofs.md, One figure for each data source.
        """
        epsilon, delta = self.everything
        if self.scope.relation is Relation.REPLACE:
            return epsilon, delta
        growth = compute_delta_growth(epsilon) * (1 + 1e-14)
        return float_from_grains(2 * grains_up(epsilon)), min(1.0, delta * growth)

    @property
    def odds(self) -> tuple[Odds, ...]:
        """The largest change of an observer's guess, for each question about the participant."""
        total = None if self._n_priced_weights is None else self.everything
        is_data_holder = self.max_rows is not None
        return compute_odds(
            self.scope, self.epsilon, self.delta, total, is_data_holder, self.provided
        )

    def rows(self) -> Iterator[Row]:
        """Yield the headings and paragraphs of both parts, for text and HTML."""
        yield from self.plain_rows()
        yield from self.expert_rows()

    def plain_rows(self) -> Iterator[Row]:
        """Yield the part for participants without technical training."""
        if self.simulated:
            yield "Simulation", (SIMULATED,)
        yield "Study", (self.title,)
        yield "Purpose", (self.purpose,)
        yield "Contact", (self.contact,)
        if self.closes is not None:
            yield "Closes", (format_utc(self.closes),)
        size = "" if self.bytes is None else f" (at most {format_count(self.bytes, 'byte')})"
        yield "You send", (f"{self.leaves}{size}",)
        yield "Seen by", (self.seen_by,)
        yield "Risk", tuple(map(str, self.odds))
        if self.shuffled is not None:
            yield "Shuffled", tuple(map(str, self._compute_shuffled_odds(self.shuffled)))
        if self.rests_on or self.trust in _RELIANCE:
            yield "Relies on", self.rests_on or (_RELIANCE[self.trust],)
        if self.not_covered:
            yield "Not covered", self.not_covered
        if self.budget is not None:
            yield "Your limit", (str(self.budget),)
        yield "Leaving", (self.undo,)

    def expert_rows(self) -> Iterator[Row]:
        """Yield the part for experts: the precise statement."""
        yield "Protocol", (self._protocol_text,)
        yield (
            "Protects",
            (
                f"{self._unit_text}: {_RELATIONS[self.scope.relation]}, against "
                f"{self.scope.adversary}",
            ),
        )
        yield "Guarantee", tuple(self._describe_guarantee())
        yield "Releases", tuple(map(str, self.releases))
        if self.digest:
            yield "Digest", (self.digest,)

    @property
    def _protocol_text(self) -> str:
        text = f"{self.protocol}, trust {self.trust}"
        if self.colluders is None:
            return text
        c, n = self.colluders
        holders = PROTOCOLS[self.protocol].holders
        few = (
            f"at most {c} of the {n} {holders.plural} work together against you"
            if c
            else f"none of the other {n - 1} {holders.plural} {holders.collusion} against you"
        )
        return f"{text}: only sums can be read, if {few}"

    @property
    def _unit_text(self) -> str:
        if self.scope.unit is Unit.PERSON and self.max_rows is not None:
            used = (
                f"at most {format_count(self.max_rows, 'row')} "
                f"{'is' if self.max_rows == 1 else 'are'} used"
            )
            return f"everything that this database holds about one person ({used}; unit: person)"
        return (
            _UPDATES
            if self.scope.unit is Unit.UPDATE and self._n_releases > 1
            else _UNITS[self.scope.unit]
        )

    def _compute_shuffled_odds(self, amplified: AmplifiedGuarantee) -> tuple[Odds, ...]:
        found = compute_odds(self.scope, amplified.epsilon, amplified.delta)
        batch = f"the shuffled batch of {amplified.n:,} honest messages"
        return tuple(replace(odds, by=batch) for odds in found)

    def _describe_guarantee(self) -> Iterator[str]:
        if self._n_priced_weights is not None:
            epsilon, delta = self.everything
            sent = (
                f"{format_count(self._n_priced_weights, 'weight')} of "
                f"{format_count(self._n_releases, 'update')}"
            )
            yield (
                f"epsilon {format_epsilon(epsilon)}, delta {format_epsilon(delta)} for "
                f"everything you send, against everyone who sees it ({sent})"
            )
            yield (
                f"epsilon {format_epsilon(self.epsilon)}, delta {format_epsilon(self.delta)} "
                "for each weight of one update, seen alone"
            )
            return
        yield (
            f"epsilon {format_epsilon(self.epsilon)}, delta {format_epsilon(self.delta)} "
            f"({self.how})"
        )
        if self.scope.relation is Relation.ADD_REMOVE:
            epsilon, delta = self.counted
            yield (
                f"your ledger counts epsilon {format_epsilon(epsilon)}, delta "
                f"{format_epsilon(delta)}: the same guarantee under replace"
            )
        if self.paper_epsilon is not None:
            yield f"by the paper's own accounting: epsilon {format_epsilon(self.paper_epsilon)}"
        if self.shuffled is not None:
            yield (
                f"shuffled among {self.shuffled.n:,} honest messages: epsilon "
                f"{format_epsilon(self.shuffled.epsilon)}, delta "
                f"{format_epsilon(self.shuffled.delta)}, against those who see only the shuffled "
                "batch"
            )

    def __str__(self) -> str:
        return "\n".join(
            [
                f"┌ PRIVACY LABEL {'─' * (COLUMNS - 17)}┐",
                *_format_rows(self.plain_rows()),
                f"├ FOR EXPERTS {'─' * (COLUMNS - 15)}┤",
                *_format_rows(self.expert_rows()),
                f"└{'─' * (COLUMNS - 2)}┘",
            ]
        )

    def to_html(self) -> str:
        """Return one HTML table with row headers, without script and with everything escaped."""
        experts = (
            '<tr><th scope="rowgroup" colspan="2" style="text-align:left">For experts</th></tr>'
        )
        return (
            '<table class="shoal-label" style="max-width:48em"><caption>Privacy label</caption>'
            f"<tbody>{_format_html_rows(self.plain_rows())}</tbody>"
            f"<tbody>{experts}{_format_html_rows(self.expert_rows())}</tbody></table>"
        )

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_dict(self) -> dict[str, object]:
        """Return plain data: every figure and word of the label."""
        return {
            "title": self.title,
            "purpose": self.purpose,
            "contact": self.contact,
            "closes": None if self.closes is None else self.closes.isoformat(),
            "digest": self.digest,
            "protocol": self.protocol,
            "trust": self.trust,
            "leaves": self.leaves,
            "bytes": self.bytes,
            "seen_by": self.seen_by,
            "unit": self.scope.unit.value,
            "relation": self.scope.relation.value,
            "adversary": self.scope.adversary,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "how": self.how,
            "everything": dict(zip(("epsilon", "delta"), self.everything, strict=True)),
            "counted": dict(zip(("epsilon", "delta"), self.counted, strict=True)),
            "plain_sum": self.plain_sum,
            "paper_epsilon": self.paper_epsilon,
            "n_weights": self.n_weights,
            "max_rows": self.max_rows,
            "colluders": None
            if self.colluders is None
            else dict(zip(("at_most", "of"), self.colluders, strict=True)),
            "provided": self.provided,
            "releases": [
                {"name": release.name, "count": release.count, **release.event.to_dict()}
                for release in self.releases
            ],
            "odds": [odds.to_dict() for odds in self.odds],
            "shuffled": None if self.shuffled is None else self._shuffled_to_dict(self.shuffled),
            "budget": None
            if self.budget is None
            else {
                name: getattr(self.budget, name)
                for name in ("limit", "used", "after", "period", "about")
            },
            "rests_on": list(self.rests_on),
            "not_covered": list(self.not_covered),
            "undo": self.undo,
            "simulated": self.simulated,
        }

    def _shuffled_to_dict(self, amplified: AmplifiedGuarantee) -> dict[str, object]:
        return {
            "epsilon_local": self.epsilon,
            "n": amplified.n,
            "epsilon": amplified.epsilon,
            "delta": amplified.delta,
            "odds": [odds.to_dict() for odds in self._compute_shuffled_odds(amplified)],
        }


def _format_rows(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of rows in a box of `COLUMNS` columns."""
    for head, paragraphs in rows:
        lines = (line for paragraph in paragraphs for line in wrap_text(paragraph, _BODY))
        for i, line in enumerate(lines):
            padding = " " * (_BODY - display_width(line))
            yield f"│ {'' if i else head:<{_HEAD}}{line}{padding} │"


def _format_html_rows(rows: Iterable[Row]) -> str:
    heading = '<th scope="row" style="text-align:left;vertical-align:top;padding-right:1em">'
    cell = '<td dir="auto" style="text-align:left;overflow-wrap:anywhere">'
    return "".join(
        f"<tr>{heading}{html.escape(head)}</th>"
        f"{cell}{'<br>'.join(map(html.escape, paragraphs))}</td></tr>"
        for head, paragraphs in rows
    )
