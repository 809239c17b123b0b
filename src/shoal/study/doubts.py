"""What a reader of a study has to be told loudly: that it hardly protects, that too few take part to learn anything, or that it is over."""

from __future__ import annotations

from datetime import datetime

from shoal.names import counted
from shoal.privacy.rounding import show
from shoal.study.odds import at_most
from shoal.study.plan import Plan
from shoal.study.price_people import forecast_anonml
from shoal.study.typeset import moment
from shoal.study.wording_pfds import NOISY_TREES

WEAK = 10.0
"""From this epsilon on, all releases together, whoever guesses may become all but certain."""
_ASK = "Ask for more participants, or for a larger epsilon"


def doubts(plan: Plan, now: datetime) -> tuple[str, ...]:
    """Sentences with figures; none where all is well. A study in doubt has a price all the same.

    Parameters
    ----------
    plan
        The study with its forecasts.
    now
        The present moment, in UTC.
    """
    return (*_weak(plan), *_hopeless(plan), *_over(plan, now))


def _weak(plan: Plan) -> list[str]:
    epsilon = plan.everything.epsilon
    if epsilon < WEAK:
        return []
    odds = f"whoever thinks something 50 of 100 likely may be moved to {at_most(50, epsilon)} of 100"
    return [f"Epsilon {show(epsilon)} in all: this protects next to nothing; {odds}. Ask for less, or say so to those who take part."]


def _hopeless(plan: Plan) -> list[str]:
    """For anonml at the minimum, which may be all who answer; the minimum of the others counts databases, not rows."""
    asked, forecasts, whose = plan.study.participation, plan.forecasts, "At the declared size"
    if plan.script is not None:
        forecasts = tuple(forecast_anonml(plan.script, asked.minimum))
        whose = f"At the minimum of {counted(asked.minimum, 'participant')}"
    noisy = [forecast for forecast in forecasts if forecast.value >= forecast.useless_from]
    if not noisy:
        return []
    worst = max(noisy, key=lambda forecast: forecast.value / forecast.useless_from)
    figures = f"{worst.what} is {show(worst.value, 3)}; a result is of use below {show(worst.useless_from, 3)}"
    part = "most of the result is noise" if len(noisy) == len(forecasts) else "some of the result is mostly noise"
    what_to_do = NOISY_TREES if plan.study.protocol == "pfds" and plan.study.variant == "paper" else _ASK
    return [f"{whose} {part}: {figures}. {what_to_do}."]


def _over(plan: Plan, now: datetime) -> list[str]:
    closes = plan.study.participation.closes
    if closes is None or closes > now:
        return []
    return [f"The study closed on {moment(closes)}, {counted((now - closes).days, 'day')} ago: nobody can join it any more."]
