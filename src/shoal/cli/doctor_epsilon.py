"""``shoal doctor epsilon``: what a configuration of another framework really guarantees, beside what it claims."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from shoal.audit.recount import Configuration, classic_sigma, gaussian_delta
from shoal.cli.doctor_view import recount_text
from shoal.cli.output import emit
from shoal.errors import UsageError
from shoal.privacy.events import Relation
from shoal.privacy.rounding import show

MAX_ROUNDS = 10**9
BROKEN = 7
"""The exit code where more is spent than was claimed, as an audit's is, or less is not shown."""


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
    """Recompute the epsilon of a configuration of another framework: from the clip, the noise, and all rounds together.

    A framework that asks for a clip and a sensitivity, each by itself, believes whatever it is told; one that counts each message alone
    says nothing of the rounds. Here the sensitivity follows from the clip: twice the clip under replace, the clip under add-remove.
    Gaussian noise without sampling is accounted for exactly; with sampling, and for laplace noise at a delta, an upper bound is given, and
    says so. The exit code is 7 where the claim is broken, or is not shown to hold by such a bound.

    Parameters
    ----------
    clip
        The norm to which a vector (an update, a gradient) is clipped: L2, or L1 for laplace.
    sensitivity
        The sensitivity that the framework is told, from which it derives its noise; by default the clip.
    noise
        The deviation of gaussian or the scale of laplace noise, in place of a claimed epsilon.
    epsilon
        The claimed epsilon of one message, from which the framework derives its noise: sensitivity * sqrt(2 ln(1.25 / delta)) / epsilon for
        gaussian, sensitivity / epsilon for laplace.
    delta
        The chance with which the guarantee may fail; gaussian noise has none without.
    rounds
        How many messages are computed from the same data.
    relation
        replace, where data may be changed to any other, as what one client sends; add-remove, where it may be missing from a sum.
    mechanism
        Which noise.
    sampling
        The chance that the data takes part in a round, where whoever looks does not know whether it does; with add-remove only. A server
        that chooses its clients knows.
    json
        Print one JSON object.
    """
    _check(clip, sensitivity, noise, epsilon, delta, rounds, sampling, relation, mechanism)
    told = clip if sensitivity is None else sensitivity
    derived = noise if epsilon is None else told / epsilon if mechanism == "laplace" else classic_sigma(told, epsilon, delta)
    assert derived is not None, "noise, or an epsilon to derive it from, is given"
    found = Configuration(clip, derived, delta, rounds, relation, mechanism, sampling)
    data = _data(found, epsilon, told if epsilon is not None else None)
    emit(data, recount_text(data), json=json, next_command=_next(data))
    if epsilon is not None and found.epsilon > epsilon:
        raise SystemExit(BROKEN)


def _check(
    clip: float,
    sensitivity: float | None,
    noise: float | None,
    epsilon: float | None,
    delta: float,
    rounds: int,
    sampling: float,
    relation: Relation,
    mechanism: str,
) -> None:
    """Refuse what is no configuration; one without noise is one."""
    for name, value in (("clip", clip), ("sensitivity", sensitivity), ("epsilon", epsilon)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError("USAGE-001", f"--{name} {value:g} is not a positive number.", fix=f"--{name} 1.0")
    if (noise is None) == (epsilon is None):
        what = "Nothing says how much noise there is." if noise is None else "Noise is given, and an epsilon to derive it from."
        raise UsageError("USAGE-001", what, fix="Give --noise, or --epsilon with --delta from which the framework derives it.")
    if noise is not None and not (math.isfinite(noise) and noise >= 0):
        raise UsageError("USAGE-001", f"--noise {noise:g} is not a deviation.", fix="--noise 1.0")
    if noise is not None and sensitivity is not None:
        what = "A sensitivity is what noise is derived from; here the noise itself is given."
        raise UsageError("USAGE-001", what, fix="Leave out --sensitivity.")
    if delta == 0 and mechanism == "gaussian":
        why = "Gaussian noise guarantees no epsilon without a small chance to fail."
        raise UsageError("USAGE-001", "--delta is needed for gaussian noise, and must be above 0.", why=why, fix="--delta 1e-5")
    if delta != 0 and not 1e-300 <= delta < 1:
        what = f"--delta {delta:g} is not a chance between 0 and 1."
        raise UsageError("USAGE-001", what, fix="--delta 1e-5")
    if not 1 <= rounds <= MAX_ROUNDS:
        raise UsageError("USAGE-001", f"--rounds {rounds} cannot be counted.", fix=f"Give a number from 1 to {MAX_ROUNDS:,}.")
    if not 0 < sampling <= 1:
        raise UsageError("USAGE-001", f"--sampling {sampling:g} is not a chance above 0.", fix="--sampling 0.01, or 1 for everyone.")
    if sampling < 1 and relation is Relation.REPLACE:
        raise UsageError(
            "USAGE-001",
            "What sampling hides is counted under add-remove.",
            why="There a unit is in a round or is not; under replace it would be there with one value or another.",
            fix="--relation add-remove, or leave out --sampling.",
        )


def _data(found: Configuration, claimed: float | None, told: float | None) -> dict[str, Any]:
    """The recount as plain data; what is infinite is null."""
    one, real = found.one_round.epsilon, found.epsilon
    has_mu = found.mechanism == "gaussian" and found.is_exact
    return {
        "mechanism": found.mechanism,
        "clip": found.clip,
        "noise": found.noise,
        "delta": found.delta,
        "rounds": found.rounds,
        "sampling": found.sampling,
        "unit": "all that one clipped vector is computed from",
        "relation": found.relation.value,
        "adversary": "whoever sees every noisy vector" + (", and not who was sampled" if found.sampling < 1 else ""),
        "sensitivity": {"real": found.sensitivity, "told": told},
        "claimed": claimed,
        "epsilon_one": _finite(one),
        "epsilon": _finite(real),
        "mu": _finite(found.mu) if has_mu and found.noise else None,
        "factor": None if claimed is None else _finite(real / claimed),
        "delta_at_claimed": gaussian_delta(found.mu, claimed) if claimed is not None and has_mu and 0 < found.mu < math.inf else None,
        "enough_noise": None if claimed is None else found.enough_noise(claimed),
        "is_exact": found.is_exact,
    }


def _next(data: Mapping[str, Any]) -> str:
    """The same with a sensitivity that makes the claim true; or a look at noise that cannot be set up wrongly."""
    if not data["factor"] or data["factor"] <= 1:
        return "shoal audit mechanism discrete-gaussian"
    right = show(data["enough_noise"] / data["noise"] * data["sensitivity"]["told"])
    given = {"clip": data["clip"], "sensitivity": right, "epsilon": data["claimed"], "delta": data["delta"], "rounds": data["rounds"]}
    given |= {"relation": data["relation"], "mechanism": data["mechanism"], "sampling": data["sampling"]}
    usual = {"rounds": 1, "relation": "replace", "mechanism": "gaussian", "sampling": 1.0, "delta": 0.0}
    return "shoal doctor epsilon " + " ".join(f"--{name} {value}" for name, value in given.items() if usual.get(name) != value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
