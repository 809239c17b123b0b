"""How ``shoal doctor`` speaks: what it found on this machine, and what a configuration's epsilon really is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import ROUND_CEILING, Context
from typing import Any

from shoal.names import counted
from shoal.privacy.rounding import show
from shoal.study.typeset import wrap

COLUMNS = 100
_HEAD = 14
_PLAIN_BELOW = 1e6
_THREE_DIGITS = Context(prec=3, rounding=ROUND_CEILING)
_CLASSIC_BELOW = 1.0
_WORDS = {"gaussian": "deviation", "laplace": "scale"}
_NORMS = {"gaussian": "L2", "laplace": "L1"}


def recount_text(data: Mapping[str, Any]) -> str:
    """A recount in lines for people."""
    has_claim = data["claimed"] is not None
    lines = [
        ("noise", _noise(data)),
        ("sensitivity", _sensitivity(data)),
        *([("claimed", f"epsilon {_figure(data['claimed'])}{_delta(data)} for one message")] if has_claim else []),
        ("real", _real(data)),
        ("speaks of", f"unit: {data['unit']}; relation {data['relation']}; against {data['adversary']}"),
        *([("verdict", _verdict(data))] if has_claim else []),
        *(("to change", words) for words in _changes(data)),
    ]
    return "\n".join(line for head, text in lines for line in paragraph(head, text))


def paragraph(head: str, text: str) -> list[str]:
    """A head and its text, in lines that fit."""
    first, *others = wrap(text, COLUMNS - _HEAD)
    return [f"{head:<{_HEAD}}{first}", *(" " * _HEAD + line for line in others)]


def _noise(data: Mapping[str, Any]) -> str:
    how, told = data["mechanism"], data["sensitivity"]["told"]
    if not data["noise"]:
        return "none"
    words = f"{how} noise of {_WORDS[how]} {data['noise']:.4g} on vectors clipped to {_NORMS[how]} norm {data['clip']:g}"
    if told is None:
        return words
    formula = "the classic formula" if how == "gaussian" else "sensitivity / epsilon"
    return f"{words}; by {formula} from sensitivity {told:g}, epsilon {data['claimed']:g}{_delta(data)}"


def _sensitivity(data: Mapping[str, Any]) -> str:
    real, told = data["sensitivity"]["real"], data["sensitivity"]["told"]
    why = "one clipped vector may become any other" if data["relation"] == "replace" else "a clipped vector may be there or not"
    typed = "" if told is None else f"; the framework was told {told:g}{', which is right' if told == real else ''}"
    return f"{real:g}, since under {data['relation']} {why}{typed}"


def _real(data: Mapping[str, Any]) -> str:
    if not data["noise"]:
        return "no privacy at all: without noise whoever looks sees the data itself"
    if data["epsilon"] is None:
        return "no epsilon that a number could hold"
    bound = "" if data["is_exact"] else "at most "
    one = f"{bound}epsilon {_figure(data['epsilon_one'])} for one message"
    if data["rounds"] == 1:
        return f"{one}{_delta(data)}"
    return f"{one}, {bound}{_figure(data['epsilon'])} for {counted(data['rounds'], 'message')} together{_delta(data)}"


def _verdict(data: Mapping[str, Any]) -> str:
    factor, at = data["factor"], data["delta_at_claimed"]
    if factor is None:
        return "nothing of the claim is left"
    if factor <= 1:
        return f"the claim holds: the real epsilon is {'' if data['is_exact'] else 'at most '}{_figure(factor)} times the claimed one"
    if not data["is_exact"]:
        return (
            f"the claim is not shown to hold: the real epsilon is at most {_figure(factor)} times the claimed one. That is an upper bound; "
            "a numerical accountant may show less"
        )
    fails = "" if at is None else f"; at epsilon {_figure(data['claimed'])} it fails with chance {show(at, 3)}, not {data['delta']:g}"
    return f"the real epsilon is {_figure(factor)} times the claimed one{fails}"


def _changes(data: Mapping[str, Any]) -> Iterator[str]:
    """What would make the claim true."""
    claimed, enough, told, noise = data["claimed"], data["enough_noise"], data["sensitivity"]["told"], data["noise"]
    if not noise:
        yield "add noise; how much follows from the clip, the rounds and the epsilon that is to hold"
    if claimed is None or (data["factor"] is not None and data["factor"] <= 1):
        return
    whole = "one message" if data["rounds"] == 1 else f"all {counted(data['rounds'], 'message')} together"
    yield (
        f"noise of {_WORDS[data['mechanism']]} {_figure(enough)} (now {noise:.4g}) "
        f"keeps {whole} to epsilon {_figure(claimed)}{_delta(data)}; "
        f"by the framework's formula that is a sensitivity of {_figure(enough / noise * told)}"
    )
    if data["mechanism"] == "gaussian" and claimed >= _CLASSIC_BELOW:
        yield "the classic formula is proved for an epsilon below 1 alone"


def _delta(data: Mapping[str, Any]) -> str:
    return f" at delta {data['delta']:g}" if data["delta"] else ""


def _figure(value: float) -> str:
    """Rounded up; of what is huge three digits are enough."""
    return show(value) if value < _PLAIN_BELOW else f"{float(_THREE_DIGITS.create_decimal_from_float(value)):.3g}"
