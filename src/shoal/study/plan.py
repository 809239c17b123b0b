"""The plan: every release of a study for one unit, priced before anything runs, from public figures only.

What cannot be priced is refused here, on the participant's side as much as on the analyst's: nobody takes the other's word for a price.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from shoal.errors import MechanismError
from shoal.names import counted
from shoal.privacy.accountant import Loss, sequential, tightest
from shoal.privacy.events import Event, Unit
from shoal.privacy.rounding import grains_up, show
from shoal.privacy.shuffle import amplify
from shoal.protocols.anonml.script import Script
from shoal.protocols.ddml.params import Params
from shoal.protocols.ddml.step import charged
from shoal.protocols.pfds.params import Params as Holders
from shoal.protocols.sdq.script import Script as SumScript
from shoal.study.anonml import script_of
from shoal.study.ddml import params_of
from shoal.study.label import UNDO, UNDO_HELD, Statement
from shoal.study.parts import Amplified, BudgetLine, Release
from shoal.study.pfds import params_of as holders_of
from shoal.study.price_databases import forecast_sdq, price_sdq
from shoal.study.price_holders import forecast_pfds, price_pfds
from shoal.study.price_people import forecast_anonml, paper_total, price_anonml
from shoal.study.price_updates import forecast_ddml, notes_ddml, price_ddml
from shoal.study.priced import Forecast, unpriceable
from shoal.study.sdq import script_of as sums_of
from shoal.study.spec import Study
from shoal.study.wording import in_several, leaves, n_bytes, not_covered, seen_by, who_is_asked
from shoal.study.wording_pfds import notes_pfds, rests_on_pfds
from shoal.study.wording_sdq import notes_sdq, rests_on_sdq


@dataclass(frozen=True)
class Plan:
    """All that a study would release about one unit, with its price and what is known about its error.

    Parameters
    ----------
    study
        The study.
    releases
        What is released, each with its event and how often.
    forecasts
        Expected errors, from public figures.
    script
        The course of an AnonML study, from which its prices come.
    params
        The public figures of a DDML study, from which its prices come.
    sdq
        The course of an SDQ study, from which its prices come.
    holders
        The public figures of a PFDS study, from which its prices come.

    Examples
    --------
    >>> from shoal.study.load import parse
    >>> from shoal.study.templates import study_text
    >>> plan = make_plan(parse(study_text("sdq")))
    >>> plan.loss.epsilon, str(plan.loss.scope.unit), [release.count for release in plan.releases]
    (1.0, 'person', [3, 1])
    """

    study: Study
    releases: tuple[Release, ...]
    forecasts: tuple[Forecast, ...] = ()
    script: Script | None = None
    params: Params | None = None
    sdq: SumScript | None = None
    holders: Holders | None = None

    @property
    def events(self) -> list[Event]:
        """One event for each release."""
        return [release.event for release in self.releases for _ in range(release.count)]

    @property
    def charges(self) -> list[Event]:
        """What the ledger counts: the events, and for the unit weight what each update costs as a whole."""
        return self.events if self.params is None else [charged(event, self.params.n_weights) for event in self.events]

    @cached_property
    def loss(self) -> Loss:
        """What all releases cost together: the plain sum, or the zero-concentrated one where Gaussian noise makes it smaller.

        For the unit weight what one of them costs: figures of single weights do not add up (errata D-15).
        """
        if self.study.unit is Unit.WEIGHT:
            return sequential(self.events[:1])
        delta = 0.0 if self.study.trust == "shuffled" else self.study.privacy.delta
        return tightest(self.events, delta) if delta else sequential(self.events)

    @property
    def everything(self) -> Loss:
        """What all that is sent costs: the loss, or for the unit weight what the ledger counts."""
        return sequential(self.charges) if self.study.unit is Unit.WEIGHT else self.loss

    @cached_property
    def central(self) -> Loss | None:
        """Trust shuffled: the guarantee against those who see the shuffled batches only, at the smallest batch that may be released.

        Notes
        -----
        The one message of a person hides in a crowd of the minimum participation times the honest share.
        """
        if self.study.trust != "shuffled":
            return None
        [message] = self.events
        return sequential([_hidden(message, self.crowd, self.study.privacy.delta)])

    @property
    def crowd(self) -> int:
        """Honest messages of the smallest batch: what a shuffled message can count on to hide in."""
        asked = self.study.participation
        return max(1, math.floor(asked.minimum * (asked.honest_share or 1.0)))

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the price has to know besides."""
        study, notes = self.study, []
        if self.script is not None:
            notes.append(who_is_asked(self.script))
        paper = paper_total(study, self.script)
        if paper is not None:
            notes.append(
                f"The paper's equation 6 counts epsilon {show(paper)} for the same releases; it assumes that features are independent. "
                f"The plain sum, epsilon {show(self.loss.epsilon)}, assumes nothing and is what the ledger counts."
            )
        if study.unit is Unit.WEIGHT and self.params is not None:
            alone = " Such figures do not add up over updates (errata D-15)." if self.params.n_updates > 1 else ""
            notes.append(
                f"Everything you send: {counted(self.params.n_weights, 'weight')} of {counted(self.params.n_updates, 'update')}, "
                f"epsilon {show(self.everything.epsilon)}, which is what the ledger counts. "
                f"Each weight of one update, seen by itself: epsilon {show(self.loss.epsilon)}.{alone}"
            )
        notes += [] if self.params is None else notes_ddml(self.params)
        if study.data is not None:
            notes.append(
                f"At most {counted(study.max_rows, 'row')} of a person {'is' if study.max_rows == 1 else 'are'} used in each database; "
                f"someone in k of the databases spends {in_several(study)}."
            )
        notes += [] if self.sdq is None else notes_sdq(study, self.sdq)
        notes += [] if self.holders is None else notes_pfds(self.holders)
        plain = sequential(self.charges)
        if study.unit is not Unit.WEIGHT and grains_up(plain.epsilon) != grains_up(self.loss.epsilon):
            notes.append(
                f"Your ledger adds up plainly: epsilon {show(plain.epsilon)}, delta {show(plain.delta)}. "
                "What is guaranteed is the zero-concentrated sum."
            )
        return tuple(notes)

    def statement(self, budget: BudgetLine | None = None, digest: str = "") -> Statement:
        """The label of the study, before anyone consents.

        Parameters
        ----------
        budget
            The participant's limit and what is used of it, where there is a ledger.
        digest
            Digest of the manifest, as it is shown to people.
        """
        study, central = self.study, self.central
        is_held = study.protocol in ("sdq", "pfds")
        return Statement(
            title=study.title,
            purpose=study.purpose,
            contact=study.contact,
            protocol=study.protocol,
            trust=study.trust,
            leaves=leaves(study, self.script, self.params, self.sdq, self.holders),
            seen_by=seen_by(study, self.sdq, self.holders),
            max_rows=study.max_rows if is_held else None,
            colluders=_colluders(study),
            provided="no database tells the miner anything" if study.sdq is not None and study.sdq.noise == "two-selected" else "",
            scope=self.loss.scope,
            epsilon=self.loss.epsilon,
            delta=self.loss.delta,
            how=self.loss.how,
            releases=self.releases,
            bytes=n_bytes(study, self.script, self.params),
            digest=digest,
            n_weights=self.params.n_weights if self.params is not None and study.unit is Unit.WEIGHT else None,
            paper_epsilon=paper_total(study, self.script),
            shuffled=None if central is None else Amplified(self.crowd, central.epsilon, central.delta),
            budget=budget,
            closes=study.participation.closes,
            rests_on=self._rests_on,
            not_covered=not_covered(study, self.sdq, self.holders),
            undo=UNDO_HELD if is_held else UNDO,
        )

    @property
    def _rests_on(self) -> tuple[str, ...]:
        if self.holders is not None:
            return rests_on_pfds(self.holders)
        return () if self.sdq is None else rests_on_sdq(self.sdq)

    def to_dict(self) -> dict[str, object]:
        """Plain data, for ``--json``."""
        return {
            "releases": [{"name": release.name, "count": release.count, **release.event.to_dict()} for release in self.releases],
            "total": self.loss.to_dict(),
            "charged": sequential(self.charges).to_dict(),
            "central": None if self.central is None else self.central.to_dict(),
            "paper_epsilon": paper_total(self.study, self.script),
            "forecasts": [{"what": forecast.what, "value": forecast.value} for forecast in self.forecasts],
            "notes": list(self.notes),
        }


def make_plan(study: Study, digest: bytes | None = None) -> Plan:
    """The plan of a study; an error where a release has no price.

    Parameters
    ----------
    study
        The study.
    digest
        Digest of its manifest, which says what AnonML asks of whom; by default that of a manifest without keys.

    Raises
    ------
    SpecError
        ``PLAN-001``: something is asked for that cannot be priced.
    """
    try:
        plan = _anonml(study, digest) if study.protocol == "anonml" else _PLANS[study.protocol](study)
        # Totals are computed now: a plan that exists has a price.
        _ = plan.loss, plan.central
    except MechanismError as error:
        delta = f", and its delta {show(study.privacy.delta)}" if study.privacy.delta else ""
        what = f"A release of this study, whose epsilon is {show(study.privacy.epsilon)} in all{delta}, cannot be made: {error.what}"
        raise unpriceable(what, why=error.why, fix=error.fix) from None
    return plan


def _anonml(study: Study, digest: bytes | None) -> Plan:
    script = script_of(study, digest)
    return Plan(study, tuple(price_anonml(study, script)), tuple(forecast_anonml(script, study.participation.size)), script)


def _ddml(study: Study) -> Plan:
    params = params_of(study)
    return Plan(study, tuple(price_ddml(study, params)), tuple(forecast_ddml(params)), params=params)


def _sdq(study: Study) -> Plan:
    script = sums_of(study)
    return Plan(study, tuple(price_sdq(study, script)), tuple(forecast_sdq(script)), sdq=script)


def _pfds(study: Study) -> Plan:
    params = holders_of(study)
    return Plan(study, tuple(price_pfds(params)), tuple(forecast_pfds(params)), holders=params)


_PLANS = {"ddml": _ddml, "sdq": _sdq, "pfds": _pfds}


def _colluders(study: Study) -> tuple[int, int] | None:
    """How many databases of a secure sum may work together, and of how many."""
    if study.trust != "secure-sum":
        return None
    if study.sdq is not None:
        return study.sdq.max_colluders, study.sdq.n_databases
    return None if study.pfds is None else (study.pfds.max_colluders, study.pfds.n_holders)


def _hidden(event: Event, crowd: int, delta: float) -> Event:
    """A shuffled message, as those see it who see nothing but the batch."""
    epsilon = amplify(event.epsilon, crowd, delta)
    scope = replace(event.scope, adversary="those who see the shuffled batches only")
    return Event("shuffled", {"messages": crowd, "epsilon_local": event.epsilon}, scope, epsilon, delta, reads=event.reads)
