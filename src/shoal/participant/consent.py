"""What a participant agrees to: all that can leave, priced at home and held against its own limits before anything is spent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Protocol

from shoal.errors import BudgetError, ConsentError
from shoal.names import counted, shown
from shoal.privacy.events import Event
from shoal.privacy.ledger import Entry
from shoal.privacy.limits import Limit, Usage, measure
from shoal.privacy.records import State
from shoal.privacy.refusal import refuse_if_over
from shoal.privacy.rounding import float_from_grains, from_grains, grains_down, grains_up, show, show_allowed, sum_up
from shoal.study.label import Statement
from shoal.study.manifest import Manifest
from shoal.study.parts import BudgetLine
from shoal.study.plan import Plan, make_plan
from shoal.study.wording_tokens import statement_of


class Limits(Protocol):
    """What is read of a ledger before anything is asked of it."""

    def limits(self) -> tuple[Usage, ...]:
        """Every limit."""
        ...

    def entries(self) -> tuple[Entry, ...]:
        """Every release."""
        ...


@dataclass(frozen=True)
class Asked:
    """A study as one participant meets it.

    Parameters
    ----------
    manifest, plan
        The study, and the price of every release, computed here.
    source
        Which of the participant's data it is about, as the ledger calls it.
    statement
        The label, with the participant's own limit.
    """

    manifest: Manifest
    plan: Plan
    source: str
    statement: Statement

    @property
    def everything(self) -> Event:
        """All that can leave, as one release with the price that the ledger counts."""
        return _together(self.plan.charges)

    @property
    def price(self) -> Decimal:
        """Most epsilon that can leave: what the label states, or the plain sum that the ledger counts, whichever is larger."""
        return from_grains(max(grains_up(self.statement.everything[0]), grains_up(self.everything.epsilon)))


def asked_of(manifest: Manifest, ledger: Limits, source: str, now: datetime, via: str | None = None) -> Asked:
    """The label of a study for one participant.

    Parameters
    ----------
    manifest
        What is asked; its price is not taken from it, but computed.
    ledger, source, now
        The participant's ledger, which of its data the study is about, and the present.
    via
        How the participant reaches the coordinator, where that is known.
    """
    plan = make_plan(manifest.study, manifest.digest)
    budget = _budget(ledger, manifest, _together(plan.charges), source, now)
    return Asked(manifest, plan, source, statement_of(manifest, plan, budget, via))


def refuse_price(asked: Asked, max_epsilon: float | None) -> None:
    """Refuse a study whose whole price is more than the participant agrees to: ``CONSENT-001``. None allows any."""
    if max_epsilon is not None and asked.price > from_grains(grains_down(max_epsilon)):
        price, event = show(asked.price), asked.everything
        raise ConsentError(
            "CONSENT-001",
            f"The study {shown(asked.statement.title)} asks for epsilon {price}, delta {show(event.delta)} ({event.scope}); "
            f"you agree to epsilon {show_allowed(max_epsilon)} at most.",
            why="That is the price of everything that it can have you send, as your ledger counts it. Nothing was sent now.",
            fix=f"Read its label; if you agree: --max-epsilon {price}",
        )


def refuse_if_voided(manifest: Manifest, ledger: Limits) -> None:
    """Refuse a study of which answers were drawn and given up, before it is begun again: ``BUDGET-005``."""
    study = manifest.digest.hex()
    voided = [entry for entry in ledger.entries() if entry.study == study and entry.state is State.VOIDED]
    if voided:
        raise BudgetError(
            "BUDGET-005",
            f"Of the study {shown(manifest.study.title)} you have given up {counted(len(voided), 'answer')} that had been drawn.",
            why="What was given up stays unanswered: a second draw could be chosen by what the first one showed. Nothing was sent now.",
            fix="What the study comes to is published by the coordinator; to take part again, wait for another study.",
        )


def refuse_if_too_much(asked: Asked, ledger: Limits, now: datetime, max_epsilon: float | None) -> None:
    """Refuse a study whose whole price is more than the participant allows, before any of it is spent.

    Parameters
    ----------
    asked, ledger, now
        The study, the participant's ledger and the present.
    max_epsilon
        Most that the participant agrees to; None where a person has read the label instead.

    Raises
    ------
    ConsentError
        ``CONSENT-001``: all that can leave costs more than was agreed to, or the study has closed.
    BudgetError
        The ledger would refuse, now or in the middle of the study.

    Notes
    -----
    What the study has in the ledger already, by a preview, is part of the price and not counted twice.
    """
    _refuse_if_closed(asked.manifest, now)
    refuse_price(asked, max_epsilon)
    others, event = _others(ledger, asked.manifest), asked.everything
    limits = [usage.limit for usage in ledger.limits()]
    for limit in limits:
        _refuse_number(measure(limit, others, now), event, asked.source, len(asked.plan.charges))
    refuse_if_over(limits, others, event, asked.source, now)


def _refuse_if_closed(manifest: Manifest, now: datetime) -> None:
    closes = manifest.study.participation.closes
    if closes is not None and now >= closes:
        raise ConsentError(
            "CONSENT-001",
            f"The study {shown(manifest.study.title)} closed on {closes:%Y-%m-%d at %H:%M} UTC, by its label.",
            why=f"It is {now:%Y-%m-%d %H:%M} UTC by your clock. Nothing was sent.",
            fix="If your clock is wrong, set it. Else ask the coordinator what the study has come to.",
        )


def _refuse_number(usage: Usage, event: Event, source: str, n: int) -> None:
    limit = usage.limit
    if limit.releases is None or not limit.concerns(event, source) or usage.releases + n <= limit.releases:
        return
    raise BudgetError(
        "BUDGET-003",
        f"This study makes up to {n} releases; {max(0, limit.releases - usage.releases)} of your {limit.period.adjective} limit of "
        f"{limit.releases} are left ({limit}).",
        why="A study that cannot be ended is not begun.",
        fix=f"Raise your own limit with: {limit.command(f'--releases {usage.releases + n}')}",
    )


def _together(charges: list[Event]) -> Event:
    """One release that costs what all of them cost, and reads what any of them reads."""
    first = charges[0]
    # A release that names no features counts for every one of them, and so does what it is a part of.
    reads = set().union(*(event.reads for event in charges)) if all(event.reads for event in charges) else set()
    epsilon = float_from_grains(sum(grains_up(event.epsilon) for event in charges))
    # A delta of 1 promises nothing, and no limit allows it.
    delta = min(sum_up(event.delta for event in charges), 1 - 2**-53)
    return Event("study", {}, first.scope, epsilon, delta, reads=tuple(sorted(reads)))


def _others(ledger: Limits, manifest: Manifest) -> list[Entry]:
    """What counts against limits, but for this study."""
    study = manifest.digest.hex()
    return [entry for entry in ledger.entries() if entry.state is not State.VOIDED and entry.study != study]


def _budget(ledger: Limits, manifest: Manifest, event: Event, source: str, now: datetime) -> BudgetLine | None:
    """The limit of which least is left when the study is done; None where none can be counted together with it."""
    others, lines = _others(ledger, manifest), []
    for limit in (usage.limit for usage in ledger.limits()):
        factor = limit.factor(event.scope.relation)
        if limit.grains is None or factor is None or not limit.concerns(event, source):
            continue
        usage = measure(limit, others, now)
        after = usage.spent + usage.held + factor * grains_up(event.epsilon)
        lines.append((limit.grains - after, _line(limit, limit.grains, usage.spent + usage.held, after)))
    return min(lines, key=lambda line: line[0])[1] if lines else None


def _line(limit: Limit, grains: int, used: int, after: int) -> BudgetLine:
    period = "in all" if limit.period == "ever" else f"a {limit.period}"
    return BudgetLine(float(from_grains(grains)), float_from_grains(used), float_from_grains(after), period)
