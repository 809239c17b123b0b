"""What may be said of a mean that stands beside guessing or beside no privacy, and figures with enough digits to show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from shoal.report.details import Mean
from shoal.report.figures import figure, interval, is_falling

Verdict = Literal["worse", "unsure", "better"]
_MOST_DIGITS = 12


def beside_guessing(measure: str, mean: Mean, n_runs: int, guess: float) -> Verdict:
    """Whether a mean is worse than guessing, not shown to be better, or better.

    It is worse, or better, only where all of its 95 % interval over runs is. One run has no interval, so that it is never called worse.

    Examples
    --------
    >>> [beside_guessing("accuracy", Mean(value=value, error=0.01), 5, 0.8) for value in (0.7, 0.79, 0.8, 0.9)]
    ['worse', 'unsure', 'unsure', 'better']
    """
    sign = -1 if is_falling(measure) else 1
    ends = [sign * end for end in interval(measure, mean, n_runs) or (mean.value,)]
    if max(ends) < sign * guess and n_runs > 1:
        return "worse"
    return "better" if min(ends) > sign * guess else "unsure"


def told_apart(values: Sequence[float], written: Callable[[float, int], str]) -> list[str]:
    """Figures with as many more digits as it takes for different values to look different.

    Parameters
    ----------
    values
        What is written.
    written
        Writes a value with some more digits than usual.
    """
    for n_more in range(_MOST_DIGITS):
        texts = [written(value, n_more) for value in values]
        if len(set(texts)) == len(set(values)):
            return texts
    return [repr(value) for value in values]


def figures(measure: str, *values: float) -> list[str]:
    """Values of a measure, as `figure` writes them where that tells them apart.

    Examples
    --------
    >>> figures("accuracy", 0.7731, 0.7734), figures("accuracy", 0.8, 0.7734)
    (['77.31 %', '77.34 %'], ['80.0 %', '77.3 %'])
    """

    def written(value: float, n_more: int) -> str:
        if not n_more:
            return figure(measure, value)
        if measure == "accuracy":
            return f"{100 * value:.{1 + n_more}f} %"
        return f"{value:.{4 + n_more}g}"

    return told_apart(values, written)


def above_no_privacy(measure: str, value: float, free: float, n_unseen: int) -> str:
    """Said where a private model does better than the one without privacy; else nothing."""
    sign = -1 if is_falling(measure) else 1
    if sign * value <= sign * free:
        return ""
    return f"better than without privacy, which may be noise of the {n_unseen:,} rows set aside, or comes of another kind of model"
