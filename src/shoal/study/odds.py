"""What an epsilon allows, as odds: how far a release can change an observer's guess.

The label prints them. People judge a risk by odds better than by a parameter. If an observer makes
a guess of p, then after seeing a release of epsilon the guess is at most
p e^epsilon / (1 - p + p e^epsilon), for any other knowledge. Figures are rounded up at one decimal
of 100.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal

from shoal.privacy.events import Relation, Scope, Unit
from shoal.privacy.rounding import (
    compute_delta_growth,
    float_from_grains,
    format_epsilon,
    grains_up,
    sum_up,
)

PRIORS = (1, 10, 50)
"""The guesses, of 100, for which odds are given."""

_CONTEXT = Context(prec=60, rounding=ROUND_CEILING)
_LOSS_MARGIN = math.nextafter(math.log(10 / 9), math.inf)

_REPLACE_GUESS = {
    Unit.PERSON: "that something is true of you",
    Unit.RECORD: "that a certain record has one value and not another",
    Unit.UPDATE: "that something is true of your rows",
    Unit.WEIGHT: "that something is true of your rows",
}
_PRESENCE_GUESS = {
    Unit.PERSON: "that you are in the data",
    Unit.RECORD: "that a certain record is in the data",
    Unit.UPDATE: "that your update was made",
    Unit.WEIGHT: "that your update was made",
}
_HOLDER_GUESS = {
    Unit.PERSON: (
        "that a certain person is in the data",
        "that something is true of a certain person",
    ),
    Unit.RECORD: (_PRESENCE_GUESS[Unit.RECORD], _REPLACE_GUESS[Unit.RECORD]),
}
"""Presence and value, if the protected people are not the readers of the label."""
_WHOLE_ANSWER = "what you send"
_DATABASE_ANSWER = "what your database sends"
_ONE_NUMBER = "one number of one update, seen without anything else computed from your rows,"


@dataclass(frozen=True, slots=True)
class Odds:
    """One question about a participant, and the largest change of an observer's guess.

    Parameters
    ----------
    guess
        The guess, in words that follow "If someone thinks the chance is 50 of 100".
    epsilon, delta
        The guarantee for this question.
    by
        The observed data, in words that can be followed by "can raise it".
    provided
        A condition of the guarantee, in words that can follow "Provided that"; may be empty.
    """

    guess: str
    epsilon: float
    delta: float
    by: str = _WHOLE_ANSWER
    provided: str = ""

    @property
    def loss_bound(self) -> float:
        """The loss that is exceeded with probability `exceedance_probability` at most.

        It is epsilon itself if delta is 0.

        Notes
        -----
        An (epsilon, delta) guarantee does not keep every guess within e^epsilon except with
        probability delta. If the loss exceeds e > epsilon, P > e^e Q, so
        delta >= P(loss > e) (1 - e^(epsilon - e)). At e = epsilon + ln(10/9) that is a tenth of
        the probability (errata X-05).
        """
        return self.epsilon + (_LOSS_MARGIN if self.delta > 0 else 0.0)

    @property
    def exceedance_probability(self) -> float:
        """The probability of a loss above `loss_bound`, ten times delta."""
        return min(1.0, sum_up([self.delta] * 10))

    def __str__(self) -> str:
        but = (
            f", except with chance {format_epsilon(self.exceedance_probability)}"
            if self.delta > 0
            else ""
        )
        bound = f"at most {bound_posterior(50, self.loss_bound)} of 100{but}"
        condition = f"Provided that {self.provided}: if" if self.provided else "If"
        return (
            f"{condition} someone thinks the chance is 50 of 100 {self.guess}, {self.by} can raise "
            f"it to {bound}."
        )

    def to_dict(self) -> dict[str, object]:
        """Return plain data, with the odds for several guesses, of 100."""
        moves = [
            {"from": prior, "to_at_most": float(bound_posterior(prior, self.loss_bound))}
            for prior in PRIORS
        ]
        return {
            "guess": self.guess,
            "by": self.by,
            "provided": self.provided,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "moves": moves,
            "except_with_chance": self.exceedance_probability,
        }


def bound_posterior(prior: int, epsilon: float) -> Decimal:
    """Return the largest guess, of 100, after a release of epsilon, rounded up at one decimal.

    Examples
    --------
    >>> bound_posterior(50, 2.0), bound_posterior(1, 2.0)
    (Decimal('88.1'), Decimal('7.0'))
    """
    rest = _CONTEXT.multiply(Decimal(100 - prior), _CONTEXT.exp(-Decimal(epsilon)))
    exact = _CONTEXT.divide(Decimal(100 * prior), _CONTEXT.add(Decimal(prior), rest))
    return exact.quantize(Decimal("0.1"), context=_CONTEXT)


def compute_odds(
    scope: Scope,
    epsilon: float,
    delta: float,
    total: tuple[float, float] | None = None,
    is_data_holder: bool = False,
    provided: str = "",
) -> tuple[Odds, ...]:
    """Return the odds that a participant should know of a guarantee.

    Parameters
    ----------
    scope, epsilon, delta
        The guarantee.
    total
        Epsilon and delta of all that is sent, if the guarantee is for one number of it. Their odds
        come first.
    is_data_holder
        True if the participant holds rows of others, who are the protected people.
    provided
        A condition of the guarantee, in words that can follow "Provided that".

    Notes
    -----
    Under add-remove, distinguishing two values of a unit takes one removal and one addition:
    epsilon counts twice, and delta (1 + e^epsilon) times. The epsilon of a weight bounds the
    information in that number alone, and nothing else (errata D-01, D-15).
    """
    by = (
        _DATABASE_ANSWER
        if is_data_holder
        else _ONE_NUMBER
        if scope.unit is Unit.WEIGHT
        else _WHOLE_ANSWER
    )
    presence, value = (
        _HOLDER_GUESS[scope.unit]
        if is_data_holder
        else (_PRESENCE_GUESS[scope.unit], _REPLACE_GUESS[scope.unit])
    )
    if scope.relation is Relation.REPLACE:
        odds = [Odds(value, epsilon, delta, by, provided)]
    else:
        twice = float_from_grains(2 * grains_up(epsilon))
        worse = min(1.0, delta * compute_delta_growth(epsilon) * (1 + 1e-14))
        odds = [
            Odds(presence, epsilon, delta, by, provided),
            Odds(f"{value}, and knows that the data is there", twice, worse, by, provided),
        ]
    return (*([] if total is None else [Odds(_REPLACE_GUESS[Unit.UPDATE], *total)]), *odds)
