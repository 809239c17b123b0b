"""Parameters, and the rule for learning rate, clip and mechanism.

All parties of a DDML study agree on these public parameters, and everything else follows from them.
The rule uses the declared size, k, epsilon and the number of weights; it reads no row.

The rule: the noise of all updates, added up, has the length R that the weights of a model may have.
R is fixed, and the learning rate follows: an update moves the mean of the instances by eta = beta
gamma / k times its gradient, and n of them add noise of length eta s sqrt(n), where s is the length
of one noisy gradient; this equals R.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

from shoal.data.schema import Categorical, Schema
from shoal.errors import MechanismError, SpecError
from shoal.mechanisms.base import check_epsilon
from shoal.mechanisms.k_closest import KClosest
from shoal.privacy.accountant import epsilon_to_rho
from shoal.privacy.events import Relation, Scope, Unit
from shoal.privacy.rounding import compute_share
from shoal.protocols.ddml.design_matrix import InputDesign
from shoal.protocols.ddml.links import Link
from shoal.protocols.ddml.merging import find_blend_factor, steady_variance

NoiseMechanism = Literal["none", "each-weight", "laplace", "closest", "gaussian"]

_RADIUS = {"logit": 3.0, "multinomial": 3.0, "log": 1.5, "identity": 0.5}
"""R, for each score of a row: a logit's weights are larger than those of a mean in [0, 1]."""

_CLIP = {"logit": 0.25, "multinomial": 0.25, "log": 0.125, "identity": 0.125}
"""The clip as a part of the largest row: directions matter more than lengths."""

_WEIGHT_CLIP = 0.02
_PAPER_CLIP = 1.0


@dataclass(frozen=True)
class Rates:
    """Learning rate, clip and mechanism of an update.

    Parameters
    ----------
    learning_rate
        gamma, for the step as it is sent.
    clip
        Largest norm of a gradient, or largest size of each weight's.
    mechanism
        Perturbs the gradient.
    """

    learning_rate: float
    clip: float
    mechanism: NoiseMechanism


def choose_rates(params: DDMLParams) -> Rates:
    """Return the rates of the study; those it does not set follow from the rule.

    Raises
    ------
    MechanismError
        ``MECH-001``: clip or learning rate is not a positive number, or the rule has no rate for
        the clip.

    Notes
    -----
    Ref: DDML §III-E, which recommends to try several. The variant ``paper`` uses its clip of [-1,
    1].
    """
    clip = _check_positive("clip", params.clip if params.clip is not None else _choose_clip(params))
    lengths = noise_lengths(params, clip)
    mechanism = min(lengths, key=lengths.__getitem__)
    # The output of k-closest has one length, which includes the gradient; for other mechanisms
    # the gradient is added.
    length = (
        lengths[mechanism]
        if mechanism == "closest"
        else math.hypot(lengths[mechanism], _bound_gradient(params, clip))
    )
    rate = (
        params.learning_rate
        if params.learning_rate is not None
        else _choose_learning_rate(params, length)
    )
    return Rates(_check_positive("learning_rate", rate), clip, mechanism)


def noise_lengths(params: DDMLParams, clip: float) -> dict[NoiseMechanism, float]:
    """Return the root mean square length of the noise on one gradient, by mechanism.

    Only mechanisms that unit, variant and delta allow are listed. Each is made for gradients that
    reach the clip in the same rows.
    """
    epsilon, p = params.epsilon_release, params.n_weights
    if params.is_noiseless:
        return {"none": 0.0}
    if params.unit == "weight":
        return {"each-weight": math.sqrt(2 * p) * 2 * clip / epsilon}
    lengths: dict[NoiseMechanism, float] = {
        "laplace": math.sqrt(2 * p) * 2 * l1_clip(params, clip) / epsilon
    }
    if params.variant == "plus":
        # One weight alone has no direction.
        if p > 1:
            lengths["closest"] = clip / KClosest(epsilon, p, params.scope).alignment
        if params.delta:
            lengths["gaussian"] = (
                math.sqrt(p)
                * 2
                * clip
                / math.sqrt(2 * epsilon_to_rho(epsilon, params.delta_release))
            )
    return lengths


def l1_clip(params: DDMLParams, clip: float) -> float:
    """Return the L1 clip that the largest row reaches together with the L2 clip.

    The row has the largest residual. The residuals of a multinomial model have an L1 norm of at
    most 2 and an L2 norm of at most sqrt(2).
    """
    l1, l2 = params.design.norms
    return clip * l1 / l2 * (math.sqrt(2) if params.n_outputs > 1 else 1)


def _check_positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise MechanismError(
            "MECH-001",
            f"{name} = {value:.3g} cannot be used.",
            why="It must be positive and finite; without a learning_rate, it follows from the "
            "clip.",
            fix="Set a learning_rate and a clip around 1, or leave both out.",
        )
    return value


def _bound_gradient(params: DDMLParams, clip: float) -> float:
    """Return the length of the longest clipped gradient."""
    return clip * math.sqrt(params.n_weights) if params.unit == "weight" else clip


def _choose_clip(params: DDMLParams) -> float:
    if params.unit == "weight":
        return _PAPER_CLIP if params.variant == "paper" else _WEIGHT_CLIP
    return _CLIP[params.link] * params.design.norms[1]


def _choose_learning_rate(params: DDMLParams, length: float) -> float:
    radius = _RADIUS[params.link] * math.sqrt(params.n_outputs)
    k, part = params.n_instances, find_blend_factor(params.merge)
    rate = radius * k / part / math.sqrt(params.n_expected) / length
    # The distance of the instances must not exceed R either, or gradients at them would carry no
    # information: many instances need many updates.
    apart = length * math.sqrt(steady_variance(k, part))
    return min(rate, radius / apart) if apart else rate


Merge = Literal["blend", "discard"]
Decay = Literal["none", "sqrt"]

ADVERSARY = "everyone who sees an update, the coordinator included"
SINGLE_WEIGHT_ADVERSARY = "whoever sees this one number of one update and nothing else"
"""The adversary for the epsilon of a single weight.

An adversary who sees more of the update learns more.
"""
_IF_APART = ", if nothing of your earlier updates was in the model drawn for it"

_EPOCHS_IN_ALL = 100
_MIN_EPOCH_UPDATES, _MAX_EPOCH_UPDATES = 1_000, 100_000


@dataclass(frozen=True)
class DDMLParams:
    """The public parameters of a study.

    Parameters
    ----------
    schema
        Features, texts and label.
    epsilon
        The total budget for all updates of one device, which share it evenly. Unit update: of
        everything it sends. Unit weight: the share of an update protects each of its weights, seen
        alone; everything that is sent costs p times epsilon. Infinite: no noise, which only a
        simulation may do.
    size
        Expected number of devices.
    variant
        ``"paper"`` always uses Laplace noise; ``"plus"`` the mechanism with the least variance.
    unit, delta
        The unit that epsilon protects; with a delta the noise may be Gaussian.
    n_updates, batch_size
        Largest number of updates of one device, and N_c, the most rows that one of them reads.
    n_instances, merge
        k, and how an update is merged into the instances.
    link, crosses, centred
        The model; whether its inputs are centred, see `InputDesign`.
    learning_rate, clip
        gamma, and the norm to which a gradient is clipped (each weight's size, for the unit
        weight); None leaves them to the rule.
    fraction_bits
        Weights are sent as 32-bit multiples of 2^-fraction_bits.
    decay, averaging
        Whether the step decreases over time, and whether the model is the average over time rather
        than the mean of the last instances.

    Notes
    -----
    Ref: DDML §III; errata D-01, D-04, D-15.

    Examples
    --------
    >>> from shoal.data.schema import Numeric
    >>> schema = Schema(
    ...     [Numeric("age", 0, 100, missing=False)], label=Categorical("ill", ["no", "yes"])
    ... )
    >>> params = DDMLParams(schema, epsilon=4.0, size=10_000, n_updates=2)
    >>> params.n_weights, params.epsilon_release, str(params.scope.unit)
    (2, 2.0, 'update')
    """

    schema: Schema
    epsilon: float
    size: int
    variant: Literal["plus", "paper"] = "plus"
    unit: Literal["update", "weight"] = "update"
    delta: float = 0.0
    n_updates: int = 1
    batch_size: int = 1
    n_instances: int = 20
    merge: Merge = "blend"
    link: Link = "logit"
    crosses: tuple[tuple[str, str], ...] = ()
    centred: bool = True
    learning_rate: float | None = None
    clip: float | None = None
    fraction_bits: int = 20
    decay: Decay = "none"
    averaging: bool = True

    def __post_init__(self) -> None:
        if self.schema.label is None:
            raise SpecError(
                "SCHEMA-001", "The schema declares no label.", fix="Use Schema(..., label=...)."
            )
        if self.size < 1:
            raise SpecError(
                "SPEC-021",
                f"size = {self.size} is not a positive number of devices.",
                fix="Set size to the expected number of devices.",
            )
        if not self.is_noiseless:
            check_epsilon(self.epsilon)

    @property
    def is_noiseless(self) -> bool:
        """True if epsilon is infinite: updates have no noise, which only a simulation may do."""
        return self.epsilon == math.inf

    @cached_property
    def design(self) -> InputDesign:
        """The inputs of the model."""
        return InputDesign(self.schema, self.crosses, self.centred)

    @cached_property
    def n_outputs(self) -> int:
        """C, the number of scores of a row: the classes of a multinomial model, else 1."""
        label = self.schema.label
        return (
            len(label.values)
            if self.link == "multinomial" and isinstance(label, Categorical)
            else 1
        )

    @cached_property
    def n_weights(self) -> int:
        """p, the number of weights of a model."""
        return self.n_outputs * self.design.width

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that an update depends on."""
        assert self.schema.label is not None
        return (*self.schema.columns, self.schema.label.name)

    @cached_property
    def epsilon_release(self) -> float:
        """The cost of one update; for the unit weight, of each weight of it."""
        return (
            math.inf
            if self.is_noiseless
            else compute_share(self.epsilon, Fraction(1, self.n_updates))
        )

    @property
    def delta_release(self) -> float:
        """The delta of one update, rounded down so that the sum does not exceed the total."""
        return self.delta / self.n_updates * (1 - 1e-9) if self.n_updates > 1 else self.delta

    @property
    def scope(self) -> Scope:
        """The unit, relation and adversary of the epsilon of a release.

        Notes
        -----
        A single weight of a second update may reveal everything that the first has revealed, if an
        instance was chosen by it (errata D-15).
        """
        if self.unit == "weight":
            return Scope(
                Unit.WEIGHT,
                Relation.REPLACE,
                SINGLE_WEIGHT_ADVERSARY + (_IF_APART if self.n_updates > 1 else ""),
            )
        return Scope(Unit.UPDATE, Relation.REPLACE, ADVERSARY)

    @property
    def n_expected(self) -> int:
        """Expected number of updates in total."""
        return self.size * self.n_updates

    @property
    def epoch_updates(self) -> int:
        """Number of updates in an epoch.

        Epochs are a coarse clock, by which the step decreases and an update becomes stale.
        """
        return min(_MAX_EPOCH_UPDATES, max(_MIN_EPOCH_UPDATES, self.n_expected // _EPOCHS_IN_ALL))

    @property
    def last_epoch(self) -> int:
        """The epoch of the last expected update, after which the step stays constant."""
        return self.n_expected // self.epoch_updates

    @cached_property
    def rates(self) -> Rates:
        """Learning rate and clip: as given, or by the rule."""
        return choose_rates(self)

    def gamma(self, epoch: int = 0) -> float:
        """Return the learning rate of an epoch.

        Notes
        -----
        Ref: DDML §III-E, which leaves a decreasing rate to future work.
        """
        return self.rates.learning_rate / (
            math.sqrt(1 + min(epoch, self.last_epoch)) if self.decay == "sqrt" else 1.0
        )
