"""``shoal doctor epsilon``: the real epsilon of another framework's configuration.

The command computes it with `shoal.audit.external`, and prints it with the claim. Numbers are
rounded up, never down.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from decimal import ROUND_CEILING, Context
from typing import Any, Literal

from shoal.audit.external import NoiseConfiguration, compute_classic_sigma, compute_gaussian_delta
from shoal.cli.output import emit
from shoal.errors import UsageError
from shoal.privacy.events import Relation
from shoal.privacy.rounding import format_epsilon
from shoal.text import format_count, wrap_text

COLUMNS = 100
_HEAD_WIDTH = 14
_MAX_PLAIN = 1e6
_THREE_DIGITS = Context(prec=3, rounding=ROUND_CEILING)
_MAX_CLASSIC_EPSILON = 1.0
_NOISE_PARAMETERS = {"gaussian": "deviation", "laplace": "scale"}
_NORMS = {"gaussian": "L2", "laplace": "L1"}


def format_recount(data: Mapping[str, Any]) -> str:
    """Return the recomputed values as text for people."""
    has_claim = data["claimed"] is not None
    lines = [
        ("noise", _describe_noise(data)),
        ("sensitivity", _describe_sensitivity(data)),
        *(
            [
                (
                    "claimed",
                    f"epsilon {_format_rounded_up(data['claimed'])}{_format_delta(data)} for one "
                    "message",
                )
            ]
            if has_claim
            else []
        ),
        ("real", _describe_real_epsilon(data)),
        (
            "guarantee",
            f"unit: {data['unit']}; relation {data['relation']}; against {data['adversary']}",
        ),
        *([("verdict", _describe_verdict(data))] if has_claim else []),
        *(("to change", text) for text in _list_fixes(data)),
    ]
    return "\n".join(line for head, text in lines for line in format_paragraph(head, text))


def format_paragraph(head: str, text: str) -> list[str]:
    """Return a heading and its text as lines that fit the width."""
    first, *others = wrap_text(text, COLUMNS - _HEAD_WIDTH)
    return [f"{head:<{_HEAD_WIDTH}}{first}", *(" " * _HEAD_WIDTH + line for line in others)]


def _describe_noise(data: Mapping[str, Any]) -> str:
    kind, given = data["mechanism"], data["sensitivity"]["told"]
    if not data["noise"]:
        return "none"
    noise = (
        f"{kind} noise of {_NOISE_PARAMETERS[kind]} {data['noise']:.4g} on vectors clipped to "
        f"{_NORMS[kind]} norm {data['clip']:g}"
    )
    if given is None:
        return noise
    formula = "the classic formula" if kind == "gaussian" else "sensitivity / epsilon"
    return (
        f"{noise}; by {formula} from sensitivity {given:g}, epsilon "
        f"{data['claimed']:g}{_format_delta(data)}"
    )


def _describe_sensitivity(data: Mapping[str, Any]) -> str:
    real, given = data["sensitivity"]["real"], data["sensitivity"]["told"]
    why = (
        "one clipped vector may become any other"
        if data["relation"] == "replace"
        else "a clipped vector may be present or absent"
    )
    assumed = (
        ""
        if given is None
        else f"; the framework assumes {given:g}{', which is correct' if given == real else ''}"
    )
    return f"{real:g}, because under {data['relation']} {why}{assumed}"


def _describe_real_epsilon(data: Mapping[str, Any]) -> str:
    if not data["noise"]:
        return "no privacy at all: without noise an observer sees the data itself"
    if data["epsilon"] is None:
        return "an epsilon too large for a floating-point number"
    bound = "" if data["is_exact"] else "at most "
    one = f"{bound}epsilon {_format_rounded_up(data['epsilon_one'])} for one message"
    if data["rounds"] == 1:
        return f"{one}{_format_delta(data)}"
    return (
        f"{one}, {bound}{_format_rounded_up(data['epsilon'])} for "
        f"{format_count(data['rounds'], 'message')} together{_format_delta(data)}"
    )


def _describe_verdict(data: Mapping[str, Any]) -> str:
    factor, at = data["factor"], data["delta_at_claimed"]
    if factor is None:
        return "the claim does not hold for any epsilon"
    if factor <= 1:
        return (
            "the claim holds: the real epsilon is "
            f"{'' if data['is_exact'] else 'at most '}{_format_rounded_up(factor)} times the "
            "claimed one"
        )
    if not data["is_exact"]:
        return (
            "the claim is not shown to hold: the real epsilon is at most "
            f"{_format_rounded_up(factor)} times the claimed one. That is an upper bound; "
            "a numerical accountant may show less"
        )
    fails = (
        ""
        if at is None
        else f"; at epsilon {_format_rounded_up(data['claimed'])} it fails with probability "
        f"{format_epsilon(at, 3)}, not {data['delta']:g}"
    )
    return f"the real epsilon is {_format_rounded_up(factor)} times the claimed one{fails}"


def _list_fixes(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield changes that would make the claim true."""
    claimed, enough, given, noise = (
        data["claimed"],
        data["enough_noise"],
        data["sensitivity"]["told"],
        data["noise"],
    )
    if not noise:
        yield "add noise; the amount follows from the clip, the rounds and the target epsilon"
    if claimed is None or (data["factor"] is not None and data["factor"] <= 1):
        return
    whole = (
        "one message"
        if data["rounds"] == 1
        else f"all {format_count(data['rounds'], 'message')} together"
    )
    yield (
        f"noise of {_NOISE_PARAMETERS[data['mechanism']]} {_format_rounded_up(enough)} (now "
        f"{noise:.4g}) "
        f"keeps {whole} to epsilon {_format_rounded_up(claimed)}{_format_delta(data)}; "
        "by the framework's formula that is a sensitivity of "
        f"{_format_rounded_up(enough / noise * given)}"
    )
    if data["mechanism"] == "gaussian" and claimed >= _MAX_CLASSIC_EPSILON:
        yield "the proof of the classic formula holds only for an epsilon below 1"


def _format_delta(data: Mapping[str, Any]) -> str:
    return f" at delta {data['delta']:g}" if data["delta"] else ""


def _format_rounded_up(value: float) -> str:
    """Return a number rounded up, with three digits if it is huge."""
    return (
        format_epsilon(value)
        if value < _MAX_PLAIN
        else f"{float(_THREE_DIGITS.create_decimal_from_float(value)):.3g}"
    )


MAX_ROUNDS = 10**9
BROKEN_EXIT_CODE = 7
"""Exit code if the claim is broken, or is not shown to hold; that of an audit."""


def epsilon(
    *,
    clip: float,
    sensitivity: float | None = None,
    noise: float | None = None,
    epsilon: float | None = None,
    delta: float = 0.0,
    rounds: int = 1,
    relation: Relation = Relation.REPLACE,
    mechanism: Literal["gaussian", "laplace"] = "gaussian",
    sampling: float = 1.0,
    json: bool = False,
) -> None:
    """Recompute the epsilon of another framework's configuration, over all rounds.

    Some frameworks ask for a clip and a sensitivity separately, and do not check that they agree;
    some count each message alone and ignore the number of rounds. Here the sensitivity follows
    from the clip: twice the clip under replace, the clip under add-remove. Gaussian noise without
    sampling is accounted for exactly. With sampling, and for laplace noise at a delta, the result
    is an upper bound and is marked as one. The exit code is 7 if the claim is broken, or if such a
    bound does not show that it holds.

    Parameters
    ----------
    clip
        The norm to which a vector (an update, a gradient) is clipped: L2, or L1 for laplace.
    sensitivity
        The sensitivity in the framework's configuration, from which it derives its noise; by
        default the clip.
    noise
        The deviation of gaussian or the scale of laplace noise, in place of a claimed epsilon.
    epsilon
        The claimed epsilon of one message, from which the framework derives its noise: sensitivity
        * sqrt(2 ln(1.25 / delta)) / epsilon for gaussian, sensitivity / epsilon for laplace.
    delta
        Limits how often the loss may exceed epsilon; gaussian noise requires one above 0.
    rounds
        The number of messages that are computed from the same data.
    relation
        replace, if data may change to any other, as in the messages of one client; add-remove, if
        it may be missing from a sum.
    mechanism
        The kind of noise.
    sampling
        The probability that the data takes part in a round, if the observer does not know whether
        it does; with add-remove only. A server that chooses its clients knows.
    json
        Print one JSON object.
    """
    _check_options(clip, sensitivity, noise, epsilon)
    _check_accounting(delta, rounds, sampling, relation, mechanism)
    assumed = clip if sensitivity is None else sensitivity
    derived = (
        noise
        if epsilon is None
        else assumed / epsilon
        if mechanism == "laplace"
        else compute_classic_sigma(assumed, epsilon, delta)
    )
    assert derived is not None, "noise, or an epsilon to derive it from, is given"
    configuration = NoiseConfiguration(clip, derived, delta, rounds, relation, mechanism, sampling)
    data = _make_recount_data(configuration, epsilon, assumed if epsilon is not None else None)
    emit(data, format_recount(data), json=json, next_command=_suggest_next(data))
    if epsilon is not None and configuration.epsilon > epsilon:
        raise SystemExit(BROKEN_EXIT_CODE)


def _check_options(
    clip: float, sensitivity: float | None, noise: float | None, epsilon: float | None
) -> None:
    """Raise an error for an impossible clip, sensitivity, noise or claim; noise may be 0."""
    for name, value in (("clip", clip), ("sensitivity", sensitivity), ("epsilon", epsilon)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(
                "USAGE-001", f"--{name} {value:g} is not a positive number.", fix=f"--{name} 1.0"
            )
    if (noise is None) == (epsilon is None):
        what = (
            "Neither --noise nor --epsilon is given."
            if noise is None
            else "Both --noise and --epsilon are given."
        )
        raise UsageError(
            "USAGE-001",
            what,
            fix="Give --noise, or --epsilon with --delta from which the framework derives it.",
        )
    if noise is not None and not (math.isfinite(noise) and noise >= 0):
        raise UsageError("USAGE-001", f"--noise {noise:g} is not a deviation.", fix="--noise 1.0")
    if noise is not None and sensitivity is not None:
        what = "--sensitivity is used to derive the noise, and --noise gives the noise itself."
        raise UsageError("USAGE-001", what, fix="Remove --sensitivity.")


def _check_accounting(
    delta: float, rounds: int, sampling: float, relation: Relation, mechanism: str
) -> None:
    """Raise an error for options that cannot be accounted for."""
    if delta == 0 and mechanism == "gaussian":
        why = "Gaussian noise guarantees no epsilon without a small probability of failure."
        raise UsageError(
            "USAGE-001",
            "--delta is needed for gaussian noise, and must be above 0.",
            why=why,
            fix="--delta 1e-5",
        )
    if delta != 0 and not 1e-300 <= delta < 1:
        what = f"--delta {delta:g} is not a probability between 0 and 1."
        raise UsageError("USAGE-001", what, fix="--delta 1e-5")
    if not 1 <= rounds <= MAX_ROUNDS:
        raise UsageError(
            "USAGE-001",
            f"--rounds {rounds} is out of range.",
            fix=f"Give a number from 1 to {MAX_ROUNDS:,}.",
        )
    if not 0 < sampling <= 1:
        raise UsageError(
            "USAGE-001",
            f"--sampling {sampling:g} is not a probability above 0.",
            fix="Try --sampling 0.01, or 1 for all units.",
        )
    if sampling < 1 and relation is Relation.REPLACE:
        raise UsageError(
            "USAGE-001",
            "Amplification by sampling is accounted for under add-remove only.",
            why="Under add-remove a unit is in a round or not; under replace it is there with one "
            "of two values.",
            fix="Use --relation add-remove, or remove --sampling.",
        )


def _make_recount_data(
    configuration: NoiseConfiguration, claimed: float | None, assumed_sensitivity: float | None
) -> dict[str, Any]:
    """Return the recomputed values as plain data; infinite values are None."""
    one, real = configuration.one_round.epsilon, configuration.epsilon
    has_mu = configuration.mechanism == "gaussian" and configuration.is_exact
    return {
        "mechanism": configuration.mechanism,
        "clip": configuration.clip,
        "noise": configuration.noise,
        "delta": configuration.delta,
        "rounds": configuration.rounds,
        "sampling": configuration.sampling,
        "unit": "all that one clipped vector is computed from",
        "relation": configuration.relation.value,
        "adversary": "an observer of every noisy vector"
        + (" who does not know which units were sampled" if configuration.sampling < 1 else ""),
        "sensitivity": {"real": configuration.sensitivity, "told": assumed_sensitivity},
        "claimed": claimed,
        "epsilon_one": _replace_infinite(one),
        "epsilon": _replace_infinite(real),
        "mu": _replace_infinite(configuration.mu) if has_mu and configuration.noise else None,
        "factor": None if claimed is None else _replace_infinite(real / claimed),
        "delta_at_claimed": compute_gaussian_delta(configuration.mu, claimed)
        if claimed is not None and has_mu and 0 < configuration.mu < math.inf
        else None,
        "enough_noise": None if claimed is None else configuration.find_least_noise(claimed),
        "is_exact": configuration.is_exact,
    }


def _suggest_next(data: Mapping[str, Any]) -> str:
    """Return the command with a sensitivity that makes the claim true, or an audit."""
    if not data["factor"] or data["factor"] <= 1:
        return "shoal audit mechanism discrete-gaussian"
    needed = format_epsilon(data["enough_noise"] / data["noise"] * data["sensitivity"]["told"])
    given = {
        "clip": data["clip"],
        "sensitivity": needed,
        "epsilon": data["claimed"],
        "delta": data["delta"],
        "rounds": data["rounds"],
    }
    given |= {
        "relation": data["relation"],
        "mechanism": data["mechanism"],
        "sampling": data["sampling"],
    }
    usual = {
        "rounds": 1,
        "relation": "replace",
        "mechanism": "gaussian",
        "sampling": 1.0,
        "delta": 0.0,
    }
    return "shoal doctor epsilon " + " ".join(
        f"--{name} {value}" for name, value in given.items() if usual.get(name) != value
    )


def _replace_infinite(value: float) -> float | None:
    return value if math.isfinite(value) else None
