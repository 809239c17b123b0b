"""The label that a participant reads before consenting: text, HTML and plain data from one statement.

Titles and words come from an analyst whom nobody trusts, and are made harmless when the statement is made: no control characters,
nothing that turns the direction of writing, nothing invisible. The views only lay them out.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

from shoal.errors import SpecError
from shoal.names import counted
from shoal.privacy.events import Relation, Scope, Unit
from shoal.privacy.rounding import float_from_grains, from_grains, grains_up, show, sum_up
from shoal.study.odds import Odds, odds_of
from shoal.study.parts import Amplified, BudgetLine, Release
from shoal.study.typeset import clean, moment, width, wrap

COLUMNS = 80
_HEAD = 12
_BODY = COLUMNS - _HEAD - 4

SIMULATED = "This is a simulation: nothing was protected by this run, and nothing was sent."
UNDO = "You may leave at any time; what was already sent stays sent."
UNDO_HELD = "Your database may leave at any time; what it has already sent stays sent."

_UNITS = {
    Unit.PERSON: "everything about one person (unit: person)",
    Unit.RECORD: "one row of the data (unit: record)",
    Unit.UPDATE: "everything that one model update reveals (unit: update)",
    Unit.WEIGHT: "one number of a model update by itself, not the update as a whole (unit: weight)",
}
_UPDATES = "everything that all your model updates reveal together (unit: update)"
_RELATIONS = {
    Relation.REPLACE: "it is hard to tell whether it is as it is, or anything else (relation: replace)",
    Relation.ADD_REMOVE: "it is hard to tell whether it is there, or not there at all (relation: add-remove)",
}
_TRUST = {
    "local": "what leaves is already private; nobody has to be trusted",
    "shuffled": "what leaves is already private; the crowd hides it better where messages cannot be linked to people",
    "secure-sum": "only sums can be read",
}
_MEMBERS = {"sdq": ("databases", "helps the miner"), "pfds": ("holders", "helps those who read the sums")}
"""Who sums, and what one of them might do against the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a study asks of one participant, and what protects them: prints as the label.

    Parameters
    ----------
    title, purpose, contact, protocol, trust
        As in the study file.
    leaves, seen_by
        What leaves the participant, in words, and who sees it.
    scope, epsilon, delta, how
        The guarantee of everything together, and how it was composed. With delta 0 it is at least the plain sum of the releases. For the
        unit weight that of one weight of one update: `everything` is the other.
    releases
        Each kind of release with its price and number.
    bytes
        Most that leaves; None where it is not known.
    digest
        Digest of the manifest; empty in a simulation.
    n_weights
        Number of weights of an update, for the unit weight, whose releases are priced for each weight by itself.
    max_rows
        Most rows of one unit that are used, where the participant is a database with rows of others; None where it speaks for itself.
    colluders
        Of a secure sum: how many members may work together, and of how many; None for other trust.
    provided
        On what the guarantee depends besides, in words that can follow "If"; empty where on nothing.
    paper_epsilon
        The total of a paper's own accounting where it differs, stated beside the guarantee.
    shuffled
        The amplified guarantee, where delivery is shuffled.
    budget
        The participant's limit, where there is a ledger.
    closes
        When the study ends, in UTC; None where it does not say.
    rests_on
        What the guarantee needs others to do, and what happens where they do not.
    not_covered, undo
        What the guarantee does not speak about, and what leaving does.
    simulated
        Whether all of it happened in one process.

    Examples
    --------
    >>> from shoal.privacy.events import LOCAL_PERSON, Event
    >>> bit = Release("your answer", Event("random-response", {}, LOCAL_PERSON, 2.0))
    >>> words = dict.fromkeys(("title", "purpose", "contact", "protocol", "trust", "leaves", "seen_by"), "in plain words")
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
    releases: tuple[Release, ...]
    delta: float = 0.0
    how: str = "plain sum"
    bytes: int | None = None
    digest: str = ""
    n_weights: int | None = None
    max_rows: int | None = None
    colluders: tuple[int, int] | None = None
    provided: str = ""
    paper_epsilon: float | None = None
    shuffled: Amplified | None = None
    budget: BudgetLine | None = None
    closes: datetime | None = None
    rests_on: tuple[str, ...] = field(default=())
    not_covered: tuple[str, ...] = field(default=())
    undo: str = UNDO
    simulated: bool = False

    def __post_init__(self) -> None:
        for name in ("title", "purpose", "contact", "protocol", "trust", "leaves", "seen_by", "how", "digest", "provided", "undo"):
            object.__setattr__(self, name, clean(getattr(self, name)))
        for name in ("rests_on", "not_covered"):
            object.__setattr__(self, name, tuple(clean(item) for item in getattr(self, name)))
        object.__setattr__(self, "scope", replace(self.scope, adversary=clean(self.scope.adversary)))
        stated = grains_up(self.epsilon)
        kind = (self.scope.unit, self.scope.relation)
        if any((release.event.scope.unit, release.event.scope.relation) != kind for release in self.releases):
            raise SpecError(
                "LABEL-001",
                f"A label for {self.scope.unit}, {self.scope.relation} was to list a release for another unit or relation.",
                why="An epsilon speaks about one unit and one neighbouring relation.",
            )
        prices = [grains_up(release.event.epsilon) for release in self.releases]
        least = self._plain_grains if self._p is None else max(prices, default=0)
        if self.delta == 0 and stated < least:
            raise SpecError(
                "LABEL-001",
                f"A label was to state epsilon {show(self.epsilon)} for releases that add up to {show(from_grains(least))}.",
                why="Without a delta the guarantee is at least the plain sum.",
            )

    @property
    def _p(self) -> int | None:
        """Weights of an update, where each is priced by itself."""
        return self.n_weights if self.scope.unit is Unit.WEIGHT else None

    @property
    def _n_releases(self) -> int:
        return sum(release.count for release in self.releases)

    @property
    def _plain_grains(self) -> int:
        return (self._p or 1) * sum(release.count * grains_up(release.event.epsilon) for release in self.releases)

    @property
    def plain_sum(self) -> float:
        """The plain sum of the epsilons of all releases, and of all weights where each is priced by itself."""
        return float_from_grains(self._plain_grains)

    @property
    def everything(self) -> tuple[float, float]:
        """Epsilon and delta of all that is sent: the guarantee, or for the unit weight the sum over all weights of all updates.

        Notes
        -----
        Ref: errata D-01, D-15.
        """
        if self._p is None:
            return self.epsilon, self.delta
        delta = sum_up(release.event.delta for release in self.releases for _ in range(release.count))
        return self.plain_sum, min(1.0, self._p * delta * (1 + 1e-14))

    def rows(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The label as heads and paragraphs, from which text and HTML are laid out."""
        if self.simulated:
            yield "Simulation", (SIMULATED,)
        yield "Study", (self.title, *((f"digest {self.digest}",) if self.digest else ()))
        yield "Asks", (self.purpose,)
        yield "By", (self.contact,)
        if self.closes is not None:
            yield "Closes", (moment(self.closes),)
        yield "Protocol", (self._protocol,)
        yield "Leaves here", (self.leaves + ("" if self.bytes is None else f" (at most {counted(self.bytes, 'byte')})"),)
        yield "Seen by", (self.seen_by,)
        yield "Protects", (f"{self._unit}: {_RELATIONS[self.scope.relation]}; against {self.scope.adversary}",)
        yield "Guarantee", tuple(self._guarantee())
        yield "Releases", tuple(map(str, self.releases))
        yield "In words", tuple(map(str, self._odds()))
        if self.shuffled is not None:
            yield "In a crowd", tuple(self._crowd(self.shuffled))
        if self.budget is not None:
            yield "Your limit", (str(self.budget),)
        if self.rests_on:
            yield "Rests on", self.rests_on
        if self.not_covered:
            yield "Not covered", self.not_covered
        yield "Undo", (self.undo,)

    @property
    def _protocol(self) -> str:
        means = f": {_TRUST[self.trust]}" if self.trust in _TRUST else ""
        if self.colluders is not None:
            c, n = self.colluders
            members, helps = _MEMBERS.get(self.protocol, _MEMBERS["sdq"])
            few = f"at most {c} of the {n} {members} work together" if c else f"none of the other {n - 1} {members} {helps}"
            means += f", as long as {few} against you"
        return f"{self.protocol}, {self.trust}{means}"

    @property
    def _unit(self) -> str:
        if self.scope.unit is Unit.PERSON and self.max_rows is not None:
            used = f"at most {counted(self.max_rows, 'row')} {'is' if self.max_rows == 1 else 'are'} used"
            return f"everything that this database holds about one person ({used}; unit: person)"
        return _UPDATES if self.scope.unit is Unit.UPDATE and self._n_releases > 1 else _UNITS[self.scope.unit]

    def _odds(self) -> tuple[Odds, ...]:
        everything = None if self._p is None else self.everything
        return odds_of(self.scope, self.epsilon, self.delta, everything, self.max_rows is not None, self.provided)

    def _guarantee(self) -> Iterator[str]:
        if self._p is not None:
            epsilon, delta = self.everything
            sent = f"{counted(self._p, 'weight')} of {counted(self._n_releases, 'update')}"
            yield f"epsilon {show(epsilon)}, delta {show(delta)} for everything you send, against everyone who sees it ({sent})"
            yield f"epsilon {show(self.epsilon)}, delta {show(self.delta)} for each weight of one update, seen by itself"
            return
        yield f"epsilon {show(self.epsilon)}, delta {show(self.delta)} ({self.how})"
        if grains_up(self.epsilon) != self._plain_grains:
            delta = sum_up(release.event.delta for release in self.releases for _ in range(release.count))
            plain = f"epsilon {show(from_grains(self._plain_grains))}, delta {show(min(1.0, delta))}"
            yield f"plain sum of all releases, which is what your ledger counts: {plain}"
        if self.paper_epsilon is not None:
            yield f"by the paper's own accounting: epsilon {show(self.paper_epsilon)}"

    def _crowd(self, crowd: Amplified) -> Iterator[str]:
        yield f"what you send, by itself: epsilon {show(self.epsilon)}, against {self.scope.adversary}"
        yield (
            f"shuffled among {crowd.n:,} honest messages: epsilon {show(crowd.epsilon)}, delta {show(crowd.delta)}, "
            "against those who see only the shuffled batch"
        )
        yield from map(str, odds_of(self.scope, crowd.epsilon, crowd.delta))

    def __str__(self) -> str:
        top = f"┌ PRIVACY LABEL {'─' * (COLUMNS - 17)}┐"
        lines = [top]
        for head, paragraphs in self.rows():
            for i, line in enumerate(line for paragraph in paragraphs for line in wrap(paragraph, _BODY)):
                lines.append(f"│ {head if i == 0 else '':<{_HEAD}}{line}{' ' * (_BODY - width(line))} │")
        return "\n".join([*lines, f"└{'─' * (COLUMNS - 2)}┘"])

    def to_html(self) -> str:
        """A fragment that stands by itself: one table with row headers, no script, everything escaped."""
        rows = "".join(
            f'<tr><th scope="row" style="text-align:left;vertical-align:top;padding-right:1em">{html.escape(head)}</th>'
            f'<td dir="auto" style="text-align:left;overflow-wrap:anywhere">{"<br>".join(map(html.escape, paragraphs))}</td></tr>'
            for head, paragraphs in self.rows()
        )
        return f'<table class="shoal-label" style="max-width:48em"><caption>Privacy label</caption><tbody>{rows}</tbody></table>'

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_dict(self) -> dict[str, object]:
        """Plain data: every figure and word of the label."""
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
            "plain_sum": self.plain_sum,
            "paper_epsilon": self.paper_epsilon,
            "n_weights": self.n_weights,
            "max_rows": self.max_rows,
            "colluders": None if self.colluders is None else dict(zip(("at_most", "of"), self.colluders, strict=True)),
            "provided": self.provided,
            "releases": [{"name": release.name, "count": release.count, **release.event.to_dict()} for release in self.releases],
            "odds": [odds.to_dict() for odds in self._odds()],
            "shuffled": None if self.shuffled is None else self._shuffled_dict(self.shuffled),
            "budget": None if self.budget is None else {name: getattr(self.budget, name) for name in ("limit", "used", "after", "period")},
            "rests_on": list(self.rests_on),
            "not_covered": list(self.not_covered),
            "undo": self.undo,
            "simulated": self.simulated,
        }

    def _shuffled_dict(self, crowd: Amplified) -> dict[str, object]:
        odds = [odds.to_dict() for odds in odds_of(self.scope, crowd.epsilon, crowd.delta)]
        return {"epsilon_local": self.epsilon, "n": crowd.n, "epsilon": crowd.epsilon, "delta": crowd.delta, "odds": odds}
