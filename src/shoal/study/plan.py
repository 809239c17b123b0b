"""Every release of a study, priced; notes and warnings.

Participants, analysts and coordinators call `make_plan` before anything runs. It uses public
figures only, and each party computes the price for itself, never from another party. A release
without a price is an error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from shoal.errors import MechanismError
from shoal.privacy.accountant import Loss, compose_sequential, compose_tightest
from shoal.privacy.amplification import amplify
from shoal.privacy.events import Event, Unit
from shoal.privacy.ledger.charges import StudyBudget
from shoal.privacy.rounding import format_epsilon
from shoal.study.label import Statement
from shoal.study.manifest import Manifest
from shoal.study.odds import bound_posterior
from shoal.study.pricing import (
    AmplifiedGuarantee,
    BudgetLine,
    Forecast,
    PricedRelease,
    describe_overlap_cost,
    make_pricing_error,
)
from shoal.study.protocol import StudyDesign
from shoal.study.registry import make_design
from shoal.study.spec import Study
from shoal.text import format_count, format_utc

WEAK_EPSILON = 10.0
"""Total epsilon from which on a guess about a person may become almost certain."""


@dataclass(frozen=True)
class Plan:
    """All releases of a study about one unit, with prices and expected errors.

    Parameters
    ----------
    design
        The study with its parameters and script, from which the prices come.
    releases
        Each kind of release with its event and number.
    forecasts
        Expected errors, from public figures.

    Examples
    --------
    >>> from shoal.study.loader import parse_study_text
    >>> from shoal.study.starters import read_starter
    >>> plan = make_plan(parse_study_text(read_starter("sdq")))
    >>> plan.loss.epsilon, str(plan.loss.scope.unit), [release.count for release in plan.releases]
    (1.0, 'person', [3, 1])
    """

    design: StudyDesign
    releases: tuple[PricedRelease, ...]
    forecasts: tuple[Forecast, ...] = ()

    @property
    def study(self) -> Study:
        """The study."""
        return self.design.study

    @property
    def params(self) -> Any:
        """The parameters that all parties of the study agree on."""
        return self.design.params

    @property
    def script(self) -> Any:
        """The script of the study; None for a protocol without rounds."""
        return self.design.script

    @property
    def events(self) -> list[Event]:
        """One event for each release."""
        return [release.event for release in self.releases for _ in range(release.count)]

    @property
    def charges(self) -> list[Event]:
        """The events that a ledger is charged; for the unit weight those of whole updates."""
        return [self.design.protocol.charge(self.design, event) for event in self.events]

    @property
    def paper_epsilon(self) -> float | None:
        """The total by the paper's own accounting; None if it has none."""
        return self.design.protocol.compute_paper_epsilon(self.design)

    @cached_property
    def loss(self) -> Loss:
        """The cost of all releases together.

        It is the plain sum, or the zero-concentrated one if Gaussian noise makes it smaller. For
        the unit weight it is the cost of one release: figures of single weights do not add up
        (errata D-15).
        """
        if self.study.unit is Unit.WEIGHT:
            return compose_sequential(self.events[:1])
        delta = 0.0 if self.study.trust == "shuffled" else self.study.privacy.delta
        return compose_tightest(self.events, delta) if delta else compose_sequential(self.events)

    @property
    def total_loss(self) -> Loss:
        """The cost of everything sent, as a ledger counts it under the study's own relation.

        It is the loss, or for the unit weight the sum of the charges.
        """
        return compose_sequential(self.charges) if self.study.unit is Unit.WEIGHT else self.loss

    @property
    def budget(self) -> StudyBudget | None:
        """The rho that a ledger converts for the whole study; None if its releases add up."""
        rho = self.loss.rho
        return None if rho is None else StudyBudget(rho, self.loss.delta)

    @cached_property
    def central_loss(self) -> Loss | None:
        """The guarantee of trust shuffled against those who see the shuffled batches only.

        Notes
        -----
        It is computed for the smallest batch that may be released. The one message of a person
        hides among the minimum participation times the honest share.
        """
        if self.study.trust != "shuffled":
            return None
        [message] = self.events
        return compose_sequential(
            [_amplify_event(message, self.min_honest_batch, self.study.privacy.delta)]
        )

    @property
    def min_honest_batch(self) -> int:
        """The number of honest messages in the smallest shuffled batch."""
        asked = self.study.participation
        return max(1, math.floor(asked.minimum * (asked.honest_share or 1.0)))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Explanations of the price."""
        study, notes = self.study, []
        if study.data is not None:
            notes.append(
                f"At most {format_count(study.max_rows, 'row')} of a person "
                f"{'is' if study.max_rows == 1 else 'are'} used in each database; "
                f"a person in k of the databases spends {describe_overlap_cost(study)}."
            )
        notes += self.design.protocol.list_notes(self)
        return tuple(notes)

    def make_statement(self, budget: BudgetLine | None = None, digest: str = "") -> Statement:
        """Return the label of the study.

        Parameters
        ----------
        budget
            The participant's limit and its use, if there is a ledger.
        digest
            Short digest of the manifest.
        """
        study, central = self.study, self.central_loss
        text = self.design.protocol.make_label_text(self.design)
        return Statement(
            title=study.title,
            purpose=study.purpose,
            contact=study.contact,
            protocol=study.protocol,
            trust=study.trust,
            leaves=text.leaves,
            seen_by=text.seen_by,
            max_rows=text.max_rows,
            colluders=text.colluders,
            provided=text.provided,
            scope=self.loss.scope,
            epsilon=self.loss.epsilon,
            delta=self.loss.delta,
            how=self.loss.how,
            releases=self.releases,
            bytes=text.bytes,
            digest=digest,
            n_weights=text.n_weights,
            paper_epsilon=self.paper_epsilon,
            shuffled=None
            if central is None
            else AmplifiedGuarantee(self.min_honest_batch, central.epsilon, central.delta),
            budget=budget,
            closes=study.participation.closes,
            rests_on=text.rests_on,
            not_covered=text.not_covered,
            undo=text.undo,
        )

    def to_dict(self) -> dict[str, object]:
        """Return plain data, for ``--json``."""
        return {
            "releases": [
                {"name": release.name, "count": release.count, **release.event.to_dict()}
                for release in self.releases
            ],
            "total": self.loss.to_dict(),
            "charged": self.total_loss.to_dict(),
            "central": None if self.central_loss is None else self.central_loss.to_dict(),
            "paper_epsilon": self.paper_epsilon,
            "forecasts": [
                {"what": forecast.what, "value": forecast.value} for forecast in self.forecasts
            ],
            "notes": list(self.notes),
        }


def make_plan(study: Study, digest: bytes | None = None) -> Plan:
    """Return the plan of a study.

    Parameters
    ----------
    digest
        Digest of its manifest, which decides the questions of AnonML; by default that of a
        manifest without keys.

    Raises
    ------
    SpecError
        ``PLAN-001``: the study asks for a release that cannot be priced.
    """
    return price_design(make_design(study, Manifest(study).digest if digest is None else digest))


def price_design(design: StudyDesign) -> Plan:
    """Return the plan of an open study; see `make_plan`."""
    study, protocol = design.study, design.protocol
    try:
        plan = Plan(
            design, tuple(protocol.price_releases(design)), tuple(protocol.forecast(design))
        )
        # Totals are computed now: a plan that exists has a price.
        _ = plan.loss, plan.central_loss
    except MechanismError as error:
        delta = f" and delta {format_epsilon(study.privacy.delta)}" if study.privacy.delta else ""
        what = (
            f"A release of this study, with a total epsilon of "
            f"{format_epsilon(study.privacy.epsilon)}{delta}, cannot be made: {error.what}"
        )
        raise make_pricing_error(what, why=error.why, fix=error.fix) from None
    return plan


def _amplify_event(event: Event, n_messages: int, delta: float) -> Event:
    """Return the event of a shuffled message against those who see the batch alone."""
    epsilon = amplify(event.epsilon, n_messages, delta)
    scope = replace(event.scope, adversary="those who see the shuffled batches only")
    return Event(
        "shuffled",
        {"messages": n_messages, "epsilon_local": event.epsilon},
        scope,
        epsilon,
        delta,
        reads=event.reads,
    )


def find_warnings(plan: Plan, now: datetime) -> tuple[str, ...]:
    """Return warnings with figures: weak privacy, mostly noise, or a study that has closed.

    Parameters
    ----------
    now
        The present time, in UTC.
    """
    return (*_warn_weak_privacy(plan), *_warn_noise(plan), *_warn_closed(plan, now))


def _warn_weak_privacy(plan: Plan) -> list[str]:
    epsilon = plan.total_loss.epsilon
    if epsilon < WEAK_EPSILON:
        return []
    return [
        f"A total epsilon of {format_epsilon(epsilon)} protects almost nothing: a guess of 50 of "
        f"100 about a participant may rise to {bound_posterior(50, epsilon)} of 100. Choose a "
        "smaller epsilon, or inform the participants."
    ]


def _warn_noise(plan: Plan) -> list[str]:
    asked, design = plan.study.participation, plan.design
    forecasts = design.protocol.forecast_minimum(design)
    if forecasts is None:
        forecasts, where = list(plan.forecasts), "At the declared size"
    else:
        where = f"At the minimum of {format_count(asked.minimum, 'participant')}"
    noisy = [forecast for forecast in forecasts if forecast.value >= forecast.useless_from]
    if not noisy:
        return []
    worst = max(noisy, key=lambda forecast: forecast.value / forecast.useless_from)
    figures = (
        f"{worst.what} is {format_epsilon(worst.value, 3)}; a result is useful below "
        f"{format_epsilon(worst.useless_from, 3)}"
    )
    part = (
        "most of the result is noise"
        if len(noisy) == len(forecasts)
        else "some of the result is mostly noise"
    )
    advice = design.protocol.advise_on_noise(plan.study)
    return [f"{where} {part}: {figures}. {advice}."]


def _warn_closed(plan: Plan, now: datetime) -> list[str]:
    closes = plan.study.participation.closes
    if closes is None or closes > now:
        return []
    return [
        f"The study closed on {format_utc(closes)}, {format_count((now - closes).days, 'day')} "
        "ago: no one can join it any more."
    ]
