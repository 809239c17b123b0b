"""DDML with fit and predict: a classifier and a regressor.

`fit` runs the population simulator of `shoal.protocols.ddml` on a study made from the settings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from shoal.data.schema import Schema
from shoal.estimators.base import (
    SimulatedClassifier,
    SimulatedEstimator,
    SimulatedRegressor,
    make_study,
)
from shoal.estimators.inputs import make_entropy, number_holders
from shoal.protocols.ddml.population import DevicePopulation, simulate
from shoal.study.ddml import build_params
from shoal.study.settings import MAX_INSTANCES

_TABLE = ("n_instances", "batch_size", "decay", "crosses")
_OPTIONAL = ("link", "learning_rate", "clip", "merge", "averaging", "centred")
"""Settings with the same names in ``[ddml]``; None selects the default of the study."""


class _DDMLEstimator(SimulatedEstimator):
    """The common part of the classifier and the regressor."""

    link: str | None = None

    def __init__(
        self,
        epsilon: float = 4.0,
        schema: Schema | None = None,
        *,
        variant: str = "plus",
        unit: str = "update",
        delta: float = 0.0,
        n_updates: int = 1,
        batch_size: int = 1,
        n_instances: int = 20,
        merge: str | None = None,
        learning_rate: float | None = None,
        clip: float | None = None,
        crosses: Sequence[tuple[str, str]] = (),
        decay: str = "none",
        averaging: bool | None = None,
        centred: bool | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.schema = schema
        self.variant = variant
        self.unit = unit
        self.delta = delta
        self.n_updates = n_updates
        self.batch_size = batch_size
        self.n_instances = n_instances
        self.merge = merge
        self.learning_rate = learning_rate
        self.clip = clip
        self.crosses = crosses
        self.decay = decay
        self.averaging = averaging
        self.centred = centred
        self.random_state = random_state

    def fit(self, X: Any, y: Any, holders: Any = None) -> Self:
        """Let every device draw a model, update it with its rows and send it back.

        Each device does so ``n_updates`` times.

        Parameters
        ----------
        X
            A data frame (pandas, polars), or an array with the schema's features and then its texts
            as columns, in order.
        y
            The label of each row. With a schema: one of its label's values, or a number in its
            range.
        holders
            The owner of each row: one device for each name. None assigns the rows in their order,
            ``batch_size`` to each device.
        """
        return self._fit(X, y, holders)

    def _learn(self, X: Any, y: Any, holders: Any) -> None:
        schema, columns, labels = self._read_rows(X, y)
        owners = None if holders is None else number_holders(holders, len(labels))
        n_devices = self._count_devices(len(labels)) if owners is None else int(owners.max()) + 1
        study = make_study(schema, n_devices, self._make_settings(n_devices))
        entropy = make_entropy(self.random_state)
        privacy = self._make_statement(study)
        params = (
            replace(build_params(study), epsilon=math.inf)
            if self._is_noiseless
            else build_params(study)
        )
        devices = DevicePopulation.from_columns(
            params, schema.encode(columns), self._encode_labels(schema, labels), owners
        )
        self.schema_, self.model_, self.privacy_ = (
            schema,
            simulate(params, devices, entropy).model,
            privacy,
        )

    def _count_devices(self, n_rows: int) -> int:
        """Return the number of devices that the rows are assigned to."""
        return -(-n_rows // self.batch_size) if _is_count(self.batch_size) else n_rows

    def _make_settings(self, n_devices: int) -> dict[str, Any]:
        """Return the keys of a study."""
        table = {name: getattr(self, name) for name in _TABLE}
        table |= {
            name: getattr(self, name) for name in _OPTIONAL if getattr(self, name) is not None
        }
        # An invalid value stays unchanged, so that the error of the study names it.
        if _is_count(self.n_instances) and self.n_instances <= MAX_INSTANCES:
            table["n_instances"] = min(self.n_instances, n_devices)
        return {
            "protocol": "ddml",
            "variant": self.variant,
            "privacy": {
                "epsilon": self._study_epsilon,
                "delta": self.delta,
                "unit": self.unit,
                "n_updates": self.n_updates,
            },
            "ddml": table,
        }


class DDMLClassifier(SimulatedClassifier, _DDMLEstimator):
    """A logistic model learned from noisy updates of many devices (Draw and Discard).

    With more than two classes it is multinomial. This simulates a whole population on one machine,
    in which devices arrive one after another in a random order. Their number is the study's
    declared size.

    Parameters
    ----------
    epsilon
        The total budget of one device for the whole fit: each of its updates may cost ``epsilon /
        n_updates``. Infinite: updates have no noise, and nothing is protected.
    schema
        Public ranges, categories, texts and classes. None infers them from the data and warns
        (`SchemaInferredWarning`): that is fine in a simulation but not private, and a model fitted
        this way must not be released.
    variant
        ``"plus"``, or ``"paper"`` for the paper's method: Laplace noise, ``merge="discard"``, no
        averaging and no centring.
    unit
        ``"update"``: epsilon protects everything that a device sends. ``"weight"``: epsilon /
        n_updates protects each single weight of one update, as in the paper; everything together
        then costs epsilon times the number of weights.
    delta
        Probability that the guarantee of unit ``update`` fails, which allows Gaussian noise; 0 for
        pure differential privacy.
    n_updates, batch_size
        Updates that each device sends, and N_c, the most rows that an update uses.
    n_instances
        k: number of model instances; at most the number of devices.
    merge
        How an update enters the instances: ``"blend"``, or ``"discard"`` as in the paper. None
        selects the default of the variant.
    learning_rate, clip
        gamma, and the norm to which a gradient is clipped. None computes them from size, epsilon, k
        and the number of weights.
    crosses
        Pairs of features. Their products are additional inputs.
    decay
        ``"sqrt"`` divides the step size by the square root of time; ``"none"`` keeps it constant.
    averaging, centred
        True to average the model over time, and to centre inputs around zero. None selects the
        default of the variant.
    random_state
        None uses the system's random source. An integer, or a NumPy generator that draws one, makes
        the run repeatable.

    Attributes
    ----------
    classes_
        The sorted values of y. Classes that the schema declares and y lacks are converted to y's
        type; if that is impossible, or two values of y have the same text, all classes are the
        declared texts.
    privacy_
        The statement, which prints as the label; `NoGuarantee` if epsilon is infinite.
    schema_
        The given or inferred schema.
    model_
        The learned model: `shoal.protocols.ddml.model.GLM`.
    n_features_in_, feature_names_in_
        Number of columns of X, and their names if it has any.

    Notes
    -----
    Ref: DDML §III, Algorithms 1 and 2; errata D-01.

    Privacy: unit update, replace, against everyone who sees an update: ``epsilon``, or epsilon
    times the number of weights if it is given for the unit weight. Each fit spends it, so that
    cross-validation and a search over settings on real devices would multiply it.

    Examples
    --------
    >>> from shoal import Categorical, Numeric
    >>> schema = Schema(
    ...     [Numeric("age", 0, 100, missing=False)], label=Categorical("retired", ["no", "yes"])
    ... )
    >>> ages = np.arange(4000).reshape(-1, 1) % 100
    >>> clf = DDMLClassifier(epsilon=4.0, schema=schema, random_state=0).fit(
    ...     ages, np.where(ages[:, 0] > 50, "yes", "no")
    ... )
    >>> clf.predict([[10], [90]]), clf.privacy_.epsilon
    (array(['no', 'yes'], dtype='<U3'), 4.0)
    """


class DDMLRegressor(SimulatedRegressor, _DDMLEstimator):
    """A linear model of a number or its logarithm, learned from noisy updates of devices.

    The protocol is Draw and Discard. The label is scaled to [0, 1] by its public range, and
    predictions stay inside the range.

    Parameters
    ----------
    link
        ``"identity"``, or ``"log"``: inputs multiply the label's distance from the lower end of its
        range.
    epsilon, schema, variant, unit, delta, n_updates, batch_size, n_instances, merge, learning_rate,
    clip
        See `DDMLClassifier`; the schema's label is `Numeric`.
    crosses, decay, averaging, centred, random_state
        See `DDMLClassifier`.

    Attributes
    ----------
    privacy_, schema_, model_, n_features_in_, feature_names_in_
        See `DDMLClassifier`.

    Notes
    -----
    Ref: DDML §III-A, equation (1); errata D-01.

    Privacy: as `DDMLClassifier`, in each fit.

    Examples
    --------
    >>> from shoal import Numeric
    >>> schema = Schema([Numeric("age", 0, 20, missing=False)], label=Numeric("height", 0, 2.5))
    >>> ages = np.arange(4000).reshape(-1, 1) % 20
    >>> heights = 0.5 + ages[:, 0] * 0.07
    >>> reg = DDMLRegressor(epsilon=4.0, schema=schema, random_state=0).fit(ages, heights)
    >>> short, tall = reg.predict([[2], [18]])
    >>> bool(tall - short > 0.5)
    True
    """

    def __init__(
        self,
        epsilon: float = 4.0,
        schema: Schema | None = None,
        *,
        link: str = "identity",
        variant: str = "plus",
        unit: str = "update",
        delta: float = 0.0,
        n_updates: int = 1,
        batch_size: int = 1,
        n_instances: int = 20,
        merge: str | None = None,
        learning_rate: float | None = None,
        clip: float | None = None,
        crosses: Sequence[tuple[str, str]] = (),
        decay: str = "none",
        averaging: bool | None = None,
        centred: bool | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            epsilon,
            schema,
            variant=variant,
            unit=unit,
            delta=delta,
            n_updates=n_updates,
            batch_size=batch_size,
            n_instances=n_instances,
            merge=merge,
            learning_rate=learning_rate,
            clip=clip,
            crosses=crosses,
            decay=decay,
            averaging=averaging,
            centred=centred,
            random_state=random_state,
        )
        self.link = link


def _is_count(value: object) -> bool:
    """Return whether a value is a positive integer; the study reports other values."""
    return isinstance(value, int | np.integer) and int(value) > 0
