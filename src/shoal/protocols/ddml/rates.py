"""Learning rate, clip and mechanism from public figures: declared size, k, epsilon and the number of weights. No row is looked at.

The rule: let the noise of all updates, added up, be as long as the weights of a model may be. So its length R is fixed, and the learning
rate follows: an update moves the mean of the instances by eta = beta gamma / k times its gradient, n of them add noise of length
eta s sqrt(n), where s is the length of one noisy gradient, and that is to be R.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shoal.errors import MechanismError
from shoal.mechanisms.closest import KClosest
from shoal.privacy.zcdp import epsilon_to_rho
from shoal.protocols.ddml.merging import part_of, steady_variance

if TYPE_CHECKING:
    from shoal.protocols.ddml.params import Params

Hiding = Literal["none", "each-weight", "laplace", "closest", "gaussian"]

_RADIUS = {"logit": 3.0, "multinomial": 3.0, "log": 1.5, "identity": 0.5}
"""R, for each score of a row: a logit's weights are larger than those of a mean in [0, 1]."""

_CLIP = {"logit": 0.25, "multinomial": 0.25, "log": 0.125, "identity": 0.125}
"""A gradient is clipped to this part of the largest row: directions count for more than lengths."""

_WEIGHT_CLIP = 0.02
_PAPER_CLIP = 1.0


@dataclass(frozen=True)
class Rates:
    """How an update is made.

    Parameters
    ----------
    learning_rate
        gamma: the step as it is sent.
    clip
        The norm to which a gradient is clipped, or the size of each weight's.
    hiding
        What hides it.
    """

    learning_rate: float
    clip: float
    hiding: Hiding


def choose_rates(params: Params) -> Rates:
    """What the study says, and where it says nothing, the rule.

    Raises
    ------
    MechanismError
        ``MECH-001``: clip or learning rate is not a positive number, or the rule has no rate for the clip.

    Notes
    -----
    Ref: DDML §III-E, which recommends to try several. Its clip of [-1, 1] is kept for the variant ``paper``.
    """
    clip = _positive("clip", params.clip if params.clip is not None else _clip(params))
    lengths = noise_lengths(params, clip)
    hiding = min(lengths, key=lengths.__getitem__)
    # What k-closest sends has one length, gradient and noise together; elsewhere the gradient comes on top.
    length = lengths[hiding] if hiding == "closest" else math.hypot(lengths[hiding], _longest(params, clip))
    rate = params.learning_rate if params.learning_rate is not None else _learning_rate(params, length)
    return Rates(_positive("learning_rate", rate), clip, hiding)


def noise_lengths(params: Params, clip: float) -> dict[Hiding, float]:
    """The root mean square length of the noise on one gradient, for each mechanism that unit, variant and delta allow.

    Each is made for gradients that reach the clip in the same rows.
    """
    epsilon, p = params.epsilon_release, params.n_weights
    if params.is_bare:
        return {"none": 0.0}
    if params.unit == "weight":
        return {"each-weight": math.sqrt(2 * p) * 2 * clip / epsilon}
    lengths: dict[Hiding, float] = {"laplace": math.sqrt(2 * p) * 2 * l1_clip(params, clip) / epsilon}
    if params.variant == "plus":
        # One weight alone has no direction.
        if p > 1:
            lengths["closest"] = clip / KClosest(epsilon, p, params.scope).alignment
        if params.delta:
            lengths["gaussian"] = math.sqrt(p) * 2 * clip / math.sqrt(2 * epsilon_to_rho(epsilon, params.delta_release))
    return lengths


def l1_clip(params: Params, clip: float) -> float:
    """The L1 norm at which the largest row with the largest residual is, when its L2 norm is at the clip.

    The residuals of a multinomial model have an L1 norm of at most 2 and an L2 norm of at most sqrt(2).
    """
    l1, l2 = params.design.norms
    return clip * l1 / l2 * (math.sqrt(2) if params.n_outputs > 1 else 1)


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise MechanismError(
            "MECH-001",
            f"{name} = {value:.3g} cannot be used.",
            why="It must be positive and finite; a learning_rate that is not given follows from the clip.",
            fix="Give a learning_rate and a clip around 1, or leave both out.",
        )
    return value


def _longest(params: Params, clip: float) -> float:
    """The length of the longest clipped gradient."""
    return clip * math.sqrt(params.n_weights) if params.unit == "weight" else clip


def _clip(params: Params) -> float:
    if params.unit == "weight":
        return _PAPER_CLIP if params.variant == "paper" else _WEIGHT_CLIP
    return _CLIP[params.link] * params.design.norms[1]


def _learning_rate(params: Params, length: float) -> float:
    radius = _RADIUS[params.link] * math.sqrt(params.n_outputs)
    k, part = params.n_instances, part_of(params.merge)
    rate = radius * k / part / math.sqrt(params.n_expected) / length
    # Nor may the instances lie further apart than R, where they would no longer tell a gradient: many of them need many updates.
    apart = length * math.sqrt(steady_variance(k, part))
    return min(rate, radius / apart) if apart else rate
