"""The price of an offer, the checks against limits, and the errors of a refused consent.

`shoal.participant.session` prices each offer here and compares it with the participant's own limits
before anything is spent. The participant's own code computes the price from the manifest; a price
that the coordinator states is never used.

Each ``..._error`` function except `already_answered_error` returns a ``CONSENT-001`` error. Nothing
was sent when one is raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shoal.errors import BudgetError, ConsentError, IntegrityError
from shoal.privacy.events import Event, Unit
from shoal.privacy.ledger.charges import PlannedCharge
from shoal.privacy.ledger.limits import (
    Limit,
    LimitUsage,
    Period,
    measure_cost,
    measure_usage,
    refuse_if_over,
)
from shoal.privacy.ledger.records import ReleaseState
from shoal.privacy.ledger.state import LedgerEntry
from shoal.privacy.rounding import (
    float_from_grains,
    format_epsilon,
    format_epsilon_down,
    from_grains,
    grains_down,
    grains_up,
)
from shoal.study.handle import StudyHandle
from shoal.study.label import Statement
from shoal.study.manifest import Manifest
from shoal.study.plan import Plan
from shoal.study.pricing import BudgetLine
from shoal.text import escape_text, format_count

if TYPE_CHECKING:
    from shoal.participant.journal import JoinedStudy


class ReadableLedger(Protocol):
    """The methods of a ledger that are called before anything is reserved."""

    def limits(self) -> tuple[LimitUsage, ...]:
        """Return every limit."""
        ...

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Return every release."""
        ...


@dataclass(frozen=True)
class PricedOffer:
    """A study with its label for one participant.

    Parameters
    ----------
    source
        Name of the participant's data in the ledger.
    statement
        The label, with the participant's own limit.
    cost
        Epsilon of everything that can be sent, in grains, as the ledger counts it.
    """

    study: StudyHandle
    source: str
    statement: Statement
    cost: int

    @property
    def manifest(self) -> Manifest:
        """The manifest of the study."""
        return self.study.manifest

    @property
    def plan(self) -> Plan:
        """Every release of the study, priced by the participant's own code."""
        return self.study.plan

    @property
    def total_event(self) -> Event:
        """Everything that can be sent, as one release under the study's own unit and relation."""
        return _combine_charges(self.plan)

    @property
    def price(self) -> Decimal:
        """Epsilon of everything that can be sent, as the ledger counts it: under replace."""
        return from_grains(self.cost)


def price_offer(
    study: StudyHandle, ledger: ReadableLedger, source: str, now: datetime, via: str | None = None
) -> PricedOffer:
    """Return a study with its label for one participant.

    Parameters
    ----------
    source
        Name of the participant's data in the ledger.
    via
        Name of the network path to the coordinator, if it is known.
    """
    asked = PlannedCharge(study.digest.hex(), source, _combine_charges(study.plan))
    budgets = list(_list_budgets(ledger, asked, now))
    budget = min(budgets, key=lambda one: one.left).line if budgets else None
    label = study.label(budget, via)
    cost = max([grains_up(label.counted[0]), *(one.cost for one in budgets)])
    return PricedOffer(study, source, label, cost)


def refuse_price(priced: PricedOffer, max_epsilon: float | None) -> None:
    """Raise ``CONSENT-001`` if the whole study costs more than `max_epsilon`; None allows all."""
    if max_epsilon is not None and priced.price > from_grains(grains_down(max_epsilon)):
        price, event = format_epsilon(priced.price), priced.total_event
        stated = format_epsilon(event.epsilon)
        counted = "" if stated == price else f", which counts as {price} under replace"
        raise ConsentError(
            "CONSENT-001",
            f"The study {escape_text(priced.statement.title)} costs epsilon {stated}, delta "
            f"{format_epsilon(event.delta)} ({event.scope}){counted}; "
            f"you allow epsilon {format_epsilon_down(max_epsilon)} at most.",
            why="This is the price of everything that you may be asked to send, as your ledger "
            "counts it. Nothing was sent now.",
            fix=f"Read the label. If you agree: --max-epsilon {price}",
        )


def refuse_if_voided(manifest: Manifest, ledger: ReadableLedger) -> None:
    """Raise ``BUDGET-005`` if answers to the study were drawn and voided."""
    study = manifest.digest.hex()
    voided = [
        entry
        for entry in ledger.entries()
        if entry.study == study and entry.state is ReleaseState.VOIDED
    ]
    if voided:
        raise BudgetError(
            "BUDGET-005",
            f"You gave up {format_count(len(voided), 'drawn answer')} to the study "
            f"{escape_text(manifest.study.title)}.",
            why="These questions stay unanswered: with a second draw you could choose between "
            "two answers. Nothing was sent now.",
            fix="Wait for another study. The coordinator publishes the result of this one.",
        )


def refuse_if_over_limits(
    priced: PricedOffer, ledger: ReadableLedger, now: datetime, max_epsilon: float | None
) -> None:
    """Raise if the whole study costs more than the participant allows, before any of it is spent.

    Parameters
    ----------
    max_epsilon
        Most epsilon that the participant agrees to; None if a person has read the label instead.

    Raises
    ------
    ConsentError
        ``CONSENT-001``: the whole study costs more than the participant agreed to, or the study has
        closed.
    BudgetError
        The ledger would refuse a release, now or in the middle of the study.

    Notes
    -----
    Releases of the study that a preview has reserved are part of the price, and count once.
    """
    _refuse_if_closed(priced.manifest, now)
    refuse_if_too_late_to_join(priced.study, now)
    refuse_price(priced, max_epsilon)
    event, study = priced.total_event, priced.manifest.digest.hex()
    others = _list_other_entries(ledger, study)
    limits = [usage.limit for usage in ledger.limits()]
    for limit in limits:
        _refuse_if_too_many_releases(
            measure_usage(limit, others, now), event, priced.source, len(priced.plan.charges)
        )
    refuse_if_over(limits, others, PlannedCharge(study, priced.source, event), now)


def _refuse_if_closed(manifest: Manifest, now: datetime) -> None:
    closes = manifest.study.participation.closes
    if closes is not None and now >= closes:
        raise ConsentError(
            "CONSENT-001",
            f"The study {escape_text(manifest.study.title)} closed on {closes:%Y-%m-%d at %H:%M} "
            "UTC, according to its label.",
            why=f"Your clock shows {now:%Y-%m-%d %H:%M} UTC. Nothing was sent.",
            fix="If your clock is wrong, set it. Otherwise ask the study's analyst for the result.",
        )


def refuse_if_too_late_to_join(study: StudyHandle, now: datetime) -> None:
    """Raise ``CONSENT-001`` if the schedule leaves no time to register and get a question."""
    if study.manifest.schedule is None:
        return
    n_phases = study.protocol.count_phases(study) or 1
    deadline = study.schedule.get_window(n_phases - 1).joins_until
    if now >= deadline:
        raise too_late_to_join_error(study.study.title, deadline, now)


def _refuse_if_too_many_releases(usage: LimitUsage, event: Event, source: str, n: int) -> None:
    limit = usage.limit
    if (
        limit.releases is None
        or not limit.applies_to(event, source)
        or usage.releases + n <= limit.releases
    ):
        return
    raise BudgetError(
        "BUDGET-003",
        f"This study makes up to {n} releases; {max(0, limit.releases - usage.releases)} of your "
        f"{limit.period.adjective} limit of "
        f"{limit.releases} are left ({limit}).",
        why="You could not answer all questions of the study.",
        fix=f"Raise your limit: {limit.format_command(f'--releases {usage.releases + n}')}",
    )


def _combine_charges(plan: Plan) -> Event:
    """Return one release with the total cost of all, and all features that they read."""
    charges, total = plan.charges, plan.total_loss
    # A release without features counts for every feature, and so does the combined one.
    reads = (
        set().union(*(event.reads for event in charges))
        if all(event.reads for event in charges)
        else set()
    )
    # A delta of 1 guarantees nothing, and no limit allows it.
    delta = min(total.delta, 1 - 2**-53)
    return Event("study", {}, charges[0].scope, total.epsilon, delta, reads=tuple(sorted(reads)))


def _list_other_entries(ledger: ReadableLedger, study: str) -> list[LedgerEntry]:
    """Return all releases that count towards limits, except those of this study."""
    return [
        entry
        for entry in ledger.entries()
        if entry.state is not ReleaseState.VOIDED and entry.study != study
    ]


class _Budget(NamedTuple):
    """A limit on epsilon for the label; what the study costs and leaves of it, in grains."""

    left: int
    cost: int
    line: BudgetLine


def _list_budgets(ledger: ReadableLedger, asked: PlannedCharge, now: datetime) -> Iterator[_Budget]:
    """Yield each limit on epsilon that applies to a study and can count it."""
    others, scope = _list_other_entries(ledger, asked.study), asked.event.scope
    for limit in (usage.limit for usage in ledger.limits()):
        if (
            limit.grains is None
            or limit.get_factor(scope) is None
            or not limit.applies_to(asked.event, asked.source)
        ):
            continue
        usage, cost, _ = measure_cost(limit, others, asked, now)
        used = usage.spent + usage.held
        line = BudgetLine(
            float(from_grains(limit.grains)),
            float_from_grains(used),
            float_from_grains(used + cost),
            "in all" if limit.period is Period.EVER else f"a {limit.period}",
            _describe_limit(limit, scope.unit),
        )
        yield _Budget(limit.grains - used - cost, cost, line)


def _describe_limit(limit: Limit, unit: Unit) -> str:
    """Return what a limit counts, for the label of a study about a unit."""
    if limit.unit is not None:
        about = f"for the unit {limit.unit} alone"
    elif unit is not Unit.RECORD:
        about = "for everything about one person, in all studies together"
    elif limit.max_rows_per_person > 1:
        about = (
            f"for everything about one person with up to {limit.max_rows_per_person} rows, in all "
            "studies together"
        )
    else:
        about = (
            "for everything about one row, in all studies together (a person with several rows in "
            "your data spends as many times as much)"
        )
    source = "" if limit.source is None else f", from {limit.source}"
    feature = "" if limit.feature is None else f", if they read {limit.feature}"
    return f"{about}{source}{feature}"


def other_coordinator_error(joined: JoinedStudy, url: str) -> ConsentError:
    """Return the error for a study that the journal has of another coordinator."""
    return ConsentError(
        "CONSENT-001",
        f"You know the study {escape_text(joined.title)} from {escape_text(joined.url)}. The "
        f"coordinator at {escape_text(url)} is a different one.",
        why="An answer is sent once, to one coordinator.",
        fix=f"Continue with the first one: shoal join {escape_text(joined.url)}",
    )


def study_changed_error(joined: JoinedStudy, study: str) -> ConsentError:
    """Return the error for a study that the participant agreed to in another version."""
    return ConsentError(
        "CONSENT-001",
        f"The study {escape_text(joined.title)} changed since you agreed: digest "
        f"{joined.study[:12]} became {study[:12]}.",
        why="You agreed to the version with the first digest. Nothing was sent to the second.",
        fix=f"Read it again: shoal join {escape_text(joined.url)} --study {study[:12]} --review",
    )


def other_role_error(joined: JoinedStudy) -> ConsentError:
    """Return the error for a participant who agreed to share and now reads, or the reverse."""
    role, fix = (
        ("to share data", "Leave out --read-only.")
        if joined.role == "sharer"
        else ("to read only", "Add --read-only.")
    )
    return ConsentError(
        "CONSENT-001",
        f"In the study {escape_text(joined.title)} you agreed {role}.",
        why="Nobody can do both in one study. Nothing was sent now.",
        fix=fix,
    )


def stored_answers_error(title: str, study: str) -> ConsentError:
    """Return the error for a reader with stored answers."""
    return ConsentError(
        "CONSENT-001",
        f"You have stored answers for the study {escape_text(title)} from an earlier --preview.",
        why="With --read-only nothing is sent.",
        fix=f"Give them up first: shoal leave {study[:12]}",
    )


def study_not_named_error(title: str, url: str, digest: str, *, has_left: bool) -> ConsentError:
    """Return the error for ``--yes`` without ``--study`` at a coordinator that is known.

    The study is new to the participant, or the participant has left it.
    """
    status = "that you have left" if has_left else "that is new to you"
    return ConsentError(
        "CONSENT-001",
        f"The coordinator at {escape_text(url)} offers a study {status}: "
        f"{escape_text(title)}, digest {digest[:12]}.",
        why="You used this coordinator for another study, and --yes alone does not name this one. "
        "Nothing was sent."
        if not has_left
        else "--yes alone does not name this study. Nothing was sent.",
        fix=f"Read the label. If you agree, name the study: --study {digest[:12]}",
    )


def not_a_member_error(study: str, n: int) -> ConsentError:
    """Return the error for a list of members that does not contain the participant."""
    return ConsentError(
        "CONSENT-001",
        f"Your key is not on the list of the {n:,} members among whom your packet would hide.",
        why="The coordinator showed you a different list than the one you are on, or it lost your "
        "registration. Nothing was sent.",
        fix="Ask the study's analyst, by e-mail or telephone. To give up the study: shoal leave "
        f"{study[:12]}",
    )


def too_few_members_error(study: str, n: int, minimum: int) -> ConsentError:
    """Return the error for a list of members with fewer than the study's minimum."""
    return ConsentError(
        "CONSENT-001",
        f"You would be one of {format_count(n, 'member')}; the study's minimum is {minimum:,}: "
        "nothing is sent.",
        why="Among so few members your packet could be yours alone.",
        fix=f"Release what your ledger reserved for it: shoal leave {study[:12]}",
    )


def too_late_to_join_error(title: str, deadline: datetime, now: datetime) -> ConsentError:
    """Return the error for a participant who joins after the time for it."""
    return ConsentError(
        "CONSENT-001",
        f"The study {escape_text(title)} could be joined until {deadline:%Y-%m-%d %H:%M:%S} UTC, "
        "by its schedule.",
        why=f"Your clock shows {now:%Y-%m-%d %H:%M:%S} UTC. The packet of a later member would be "
        "known by its time. Nothing was sent.",
        fix="If your clock is wrong, set it. Otherwise wait for another study.",
    )


def no_question_error(title: str, study: str) -> ConsentError:
    """Return the error for a study that sent no valid question in time."""
    return ConsentError(
        "CONSENT-001",
        f"The study {escape_text(title)} sent you no valid question in time.",
        why="You joined too late for your question, the coordinator could not be reached, or it "
        "sent something else. Nothing was sent.",
        fix=f"Nothing needs to be done. To give up the study: shoal leave {study[:12]}",
    )


def not_sent_error(title: str, study: str, why: str) -> ConsentError:
    """Return the error for a study with tokens of which no packet has left, and why."""
    return ConsentError(
        "CONSENT-001",
        f"Your answer to the study {escape_text(title)} was not sent: {why}.",
        why="A late packet would arrive alone and reveal its sender. Nothing was sent.",
        fix=f"Release what your ledger reserved for it: shoal leave {study[:12]}",
    )


def already_answered_error() -> IntegrityError:
    """Return the error for a coordinator that reports a different answer."""
    return IntegrityError(
        "LEDGER-007",
        "The coordinator reports a different answer from you that this ledger has no record of.",
        why="The ledger was restored from a backup and drew the answer a second time, or the "
        "coordinator lies.",
        fix="Nothing more is sent. Compare your ledger with the head that you noted: shoal ledger "
        "verify --head HEAD",
    )
