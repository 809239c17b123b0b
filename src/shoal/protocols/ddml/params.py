"""What all parties of a DDML study agree on: the public figures from which everything else follows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal

from shoal.domain import Categorical, Schema
from shoal.errors import SpecError
from shoal.mechanisms.base import check_epsilon
from shoal.privacy.events import Relation, Scope, Unit
from shoal.privacy.rounding import share
from shoal.protocols.ddml.design import Design
from shoal.protocols.ddml.links import Link
from shoal.protocols.ddml.rates import Rates, choose_rates

Merge = Literal["blend", "discard"]
Decay = Literal["none", "sqrt"]

ADVERSARY = "everyone who sees an update, the coordinator included"
READER_OF_ONE = "whoever sees this one number of one update and nothing else"
"""Against whom the epsilon of a single weight holds; whoever sees more of the update learns more."""
_IF_APART = ", if nothing of your earlier updates was in the model drawn for it"

_EPOCHS_IN_ALL = 100
_EPOCH_LEAST, _EPOCH_MOST = 1_000, 100_000


@dataclass(frozen=True)
class Params:
    """The public figures of a study.

    Parameters
    ----------
    schema
        Features, texts and label.
    epsilon
        The whole budget for all updates of one device, which share it evenly. Unit update: of everything it sends. Unit weight: the share
        of an update protects each of its weights, seen by itself; everything that is sent costs p times epsilon. Infinite: no noise at
        all, which only a simulation may do.
    size
        Devices that are expected.
    variant
        ``"paper"`` always takes Laplace noise; ``"plus"`` the mechanism with the least variance.
    unit, delta
        What epsilon protects; with a delta the noise may be Gaussian.
    n_updates, batch_size
        Updates that one device sends at most, and N_c, the most rows that one of them reads.
    n_instances, merge
        k, and how an update enters the instances.
    link, crosses, centred
        The model; whether its inputs are centred, see `Design`.
    learning_rate, clip
        gamma, and the norm to which a gradient is clipped (each weight's size, for the unit weight); None leaves them to the rule.
    fraction_bits
        Weights travel as 32-bit multiples of 2^-fraction_bits.
    decay, averaging
        Whether the step falls over time, and whether the model is the average over time rather than the instances of the moment.

    Notes
    -----
    Ref: DDML §III; errata D-01, D-04, D-15.

    Examples
    --------
    >>> from shoal.domain import Numeric
    >>> schema = Schema([Numeric("age", 0, 100, missing=False)], label=Categorical("ill", ["no", "yes"]))
    >>> params = Params(schema, epsilon=4.0, size=10_000, n_updates=2)
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
            raise SpecError("SCHEMA-001", "The schema declares no label.", fix="Give Schema(..., label=...).")
        if self.size < 1:
            raise SpecError("SPEC-021", f"size = {self.size} devices cannot send anything.", fix="Give the expected number of devices.")
        if not self.is_bare:
            check_epsilon(self.epsilon)

    @property
    def is_bare(self) -> bool:
        """Whether updates carry no noise at all, which only a simulation may do: epsilon is infinite."""
        return self.epsilon == math.inf

    @cached_property
    def design(self) -> Design:
        """The inputs of the model."""
        return Design(self.schema, self.crosses, self.centred)

    @cached_property
    def n_outputs(self) -> int:
        """C: scores of a row; one for each class of a multinomial model, else one."""
        label = self.schema.label
        return len(label.values) if self.link == "multinomial" and isinstance(label, Categorical) else 1

    @cached_property
    def n_weights(self) -> int:
        """How many weights a model has: p."""
        return self.n_outputs * self.design.width

    @property
    def columns(self) -> tuple[str, ...]:
        """All that an update depends on."""
        assert self.schema.label is not None
        return (*self.schema.columns, self.schema.label.name)

    @cached_property
    def epsilon_release(self) -> float:
        """What one update may cost; for the unit weight, each weight of it."""
        return math.inf if self.is_bare else share(self.epsilon, Fraction(1, self.n_updates))

    @property
    def delta_release(self) -> float:
        """A hair less than the part, so that the sum of the parts rounds to no more than the whole."""
        return self.delta / self.n_updates * (1 - 1e-9) if self.n_updates > 1 else self.delta

    @property
    def scope(self) -> Scope:
        """What the epsilon of a release speaks about.

        Notes
        -----
        Of a second update a single weight may tell all that the first has told, if an instance was chosen by it (errata D-15).
        """
        if self.unit == "weight":
            return Scope(Unit.WEIGHT, Relation.REPLACE, READER_OF_ONE + (_IF_APART if self.n_updates > 1 else ""))
        return Scope(Unit.UPDATE, Relation.REPLACE, ADVERSARY)

    @property
    def n_expected(self) -> int:
        """Updates that are expected in all."""
        return self.size * self.n_updates

    @property
    def epoch_updates(self) -> int:
        """Updates in an epoch: the coarse clock by which a step falls, and by which an update is too old."""
        return min(_EPOCH_MOST, max(_EPOCH_LEAST, self.n_expected // _EPOCHS_IN_ALL))

    @property
    def last_epoch(self) -> int:
        """The epoch of the last update that is expected, after which the step falls no further."""
        return self.n_expected // self.epoch_updates

    @cached_property
    def rates(self) -> Rates:
        """Learning rate and clip: as given, or by the rule."""
        return choose_rates(self)

    def gamma(self, epoch: int = 0) -> float:
        """The learning rate of an epoch.

        Notes
        -----
        Ref: DDML §III-E, which leaves a falling rate to future work.
        """
        return self.rates.learning_rate / (math.sqrt(1 + min(epoch, self.last_epoch)) if self.decay == "sqrt" else 1.0)
