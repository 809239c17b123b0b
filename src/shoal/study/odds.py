"""What an epsilon allows, as odds: how far what is sent can move somebody's guess, worded for the unit and the relation.

People judge a risk by odds better than by a parameter. If somebody holds a guess of p, then after seeing a release of epsilon it is at
most p e^epsilon / (1 - p + p e^epsilon), whatever else they know. Figures are rounded up at one decimal of 100.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal

from shoal.privacy.events import Relation, Scope, Unit
from shoal.privacy.rounding import delta_growth, float_from_grains, grains_up, show, sum_up

PRIORS = (1, 10, 50)
"""The guesses, of 100, for which odds are given."""

_CONTEXT = Context(prec=60, rounding=ROUND_CEILING)
_MORE = math.nextafter(math.log(10 / 9), math.inf)

_REPLACE_GUESS = {
    Unit.PERSON: "that something is true of you",
    Unit.RECORD: "that a certain record has one value and not another",
    Unit.UPDATE: "that something is true of your rows",
    Unit.WEIGHT: "that something is true of your rows",
}
_PRESENCE_GUESS = {
    Unit.PERSON: "that you are in the data at all",
    Unit.RECORD: "that a certain record is in the data at all",
    Unit.UPDATE: "that your update was made at all",
    Unit.WEIGHT: "that your update was made at all",
}
_HELD_GUESS = {
    Unit.PERSON: ("that a certain person is in the data at all", "that something is true of a certain person"),
    Unit.RECORD: (_PRESENCE_GUESS[Unit.RECORD], _REPLACE_GUESS[Unit.RECORD]),
}
"""Presence and value, where those who are protected are not those who read the label."""
_EVERYTHING = "what you send"
_HELD = "what your database sends"
_ONE_NUMBER = "one number of one update, seen without anything else that came of your rows,"


@dataclass(frozen=True, slots=True)
class Odds:
    """One question that somebody may have, and how far their guess can be moved.

    Parameters
    ----------
    guess
        What they guess, in words that follow "If someone thought it 50 of 100 likely".
    epsilon, delta
        What holds for this question.
    by
        What is seen, in words that can be followed by "could move them".
    provided
        On what the guarantee depends, in words that can follow "If"; empty where it holds in any case.
    """

    guess: str
    epsilon: float
    delta: float
    by: str = _EVERYTHING
    provided: str = ""

    @property
    def reach(self) -> float:
        """The loss that is passed with a chance of at most `exception`: epsilon itself where delta is 0.

        Notes
        -----
        An (epsilon, delta) guarantee does not keep every guess within e^epsilon but for a chance of delta. Where the loss passes
        e > epsilon, P > e^e Q, so delta >= P(loss > e) (1 - e^(epsilon - e)). At e = epsilon + ln(10/9) that is a tenth of the chance
        (errata X-05).
        """
        return self.epsilon + (_MORE if self.delta > 0 else 0.0)

    @property
    def exception(self) -> float:
        """The chance of passing `reach`, ten times delta."""
        return min(1.0, sum_up([self.delta] * 10))

    def __str__(self) -> str:
        but = f", except with chance {show(self.exception)}" if self.delta > 0 else ""
        moved = f"{self.by} could move them to at most {at_most(50, self.reach)} of 100{but}"
        begin = f"If {self.provided}: if" if self.provided else "If"
        return f"{begin} someone thought it 50 of 100 likely {self.guess}, {moved}."

    def to_dict(self) -> dict[str, object]:
        """Plain data, with the odds for several guesses, of 100."""
        moves = [{"from": prior, "to_at_most": float(at_most(prior, self.reach))} for prior in PRIORS]
        holds = {"epsilon": self.epsilon, "delta": self.delta, "moves": moves, "except_with_chance": self.exception}
        return {"guess": self.guess, "by": self.by, "provided": self.provided, **holds}


def at_most(prior: int, epsilon: float) -> Decimal:
    """Where a guess of so many of 100 can be moved by a release of epsilon, rounded up at one decimal.

    Examples
    --------
    >>> at_most(50, 2.0), at_most(1, 2.0)
    (Decimal('88.1'), Decimal('7.0'))
    """
    rest = _CONTEXT.multiply(Decimal(100 - prior), _CONTEXT.exp(-Decimal(epsilon)))
    exact = _CONTEXT.divide(Decimal(100 * prior), _CONTEXT.add(Decimal(prior), rest))
    return exact.quantize(Decimal("0.1"), context=_CONTEXT)


def odds_of(
    scope: Scope,
    epsilon: float,
    delta: float,
    everything: tuple[float, float] | None = None,
    is_held: bool = False,
    provided: str = "",
) -> tuple[Odds, ...]:
    """All that a participant should know of what an epsilon allows.

    Parameters
    ----------
    scope, epsilon, delta
        The guarantee.
    everything
        Epsilon and delta of all that is sent, where the guarantee is for one number of it: their odds come first.
    is_held
        Whether the participant holds rows of others, records or persons, who are the ones that are protected.
    provided
        On what the guarantee depends, in words that can follow "If".

    Notes
    -----
    Under add-remove, telling two values of a unit apart takes one removal and one addition: epsilon counts twice, and delta
    (1 + e^epsilon) times. The epsilon of a weight bounds what that number tells by itself, and nothing else (errata D-01, D-15).
    """
    by = _HELD if is_held else _ONE_NUMBER if scope.unit is Unit.WEIGHT else _EVERYTHING
    presence, value = _HELD_GUESS[scope.unit] if is_held else (_PRESENCE_GUESS[scope.unit], _REPLACE_GUESS[scope.unit])
    if scope.relation is Relation.REPLACE:
        found = [Odds(value, epsilon, delta, by, provided)]
    else:
        twice = float_from_grains(2 * grains_up(epsilon))
        worse = min(1.0, delta * delta_growth(epsilon) * (1 + 1e-14))
        found = [
            Odds(presence, epsilon, delta, by, provided),
            Odds(f"{value}, knowing that the data is there", twice, worse, by, provided),
        ]
    return (*([] if everything is None else [Odds(_REPLACE_GUESS[Unit.UPDATE], *everything)]), *found)
