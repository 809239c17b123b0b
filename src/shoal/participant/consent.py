"""What a participant agrees to: all that can leave, priced at home and held against its own limits before anything is spent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from shoal.errors import BudgetError, ConsentError
from shoal.names import shown
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


def asked_of(manifest: Manifest, ledger: Limits, source: str, now: datetime) -> Asked:
    """The label of a study for one participant.

    Parameters
    ----------
    manifest
        What is asked; its price is not taken from it, but computed.
    ledger, source, now
        The participant's ledger, which of its data the study is about, and the present.
    """
    plan = make_plan(manifest.study, manifest.digest)
    budget = _budget(ledger, manifest, _together(plan.charges), source, now)
    return Asked(manifest, plan, source, plan.statement(budget, manifest.short))


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
        ``CONSENT-001``: the label states a larger epsilon than was agreed to.
    BudgetError
        The ledger would refuse, now or in the middle of the study.

    Notes
    -----
    What the study has in the ledger already, by a preview, is part of the price and not counted twice.
    """
    epsilon = asked.statement.everything[0]
    if max_epsilon is not None and grains_up(epsilon) > grains_down(max_epsilon):
        raise ConsentError(
            "CONSENT-001",
            f"The study {shown(asked.statement.title)} asks for epsilon {show(epsilon)}; you agree to at most {show_allowed(max_epsilon)}.",
            why="That is the price of everything that it can have you send. Nothing was sent, and nothing was spent.",
            fix=f"Read its label; if you agree: --max-epsilon {show(epsilon)}",
        )
    others, event = _others(ledger, asked.manifest), asked.everything
    limits = [usage.limit for usage in ledger.limits()]
    for limit in limits:
        _refuse_number(measure(limit, others, now), event, asked.source, len(asked.plan.charges))
    refuse_if_over(limits, others, event, asked.source, now)


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
