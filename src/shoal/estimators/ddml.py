"""DDML behind fit and predict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from shoal.domain import Schema
from shoal.estimators.base import Classifier, Estimator, Regressor
from shoal.estimators.inputs import entropy_of, holder_numbers
from shoal.estimators.studies import make_study
from shoal.protocols.ddml.population import Devices, simulate
from shoal.study.ddml import params_of
from shoal.study.settings import MAX_INSTANCES

_TABLE = ("n_instances", "batch_size", "decay", "crosses")
_FOLLOWS = ("link", "learning_rate", "clip", "merge", "averaging", "centred")
"""Settings that a study has under the same names in ``[ddml]``; where these are None, it has its own rule."""


class _DDML(Estimator):
    """What the classifier and the regressor share."""

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
        """Let every device draw a model, improve it by its rows and send it back, as often as the settings say.

        Parameters
        ----------
        X
            A dataframe (pandas, polars), or an array whose columns are the schema's features and then its texts, in order.
        y
            The label of each row, which a given schema declares: one of its values, or a number in its range.
        holders
            Whose each row is: one device for each name. None deals the rows out in their order, ``batch_size`` to each device.
        """
        return self._fit(X, y, holders)

    def _learn(self, X: Any, y: Any, holders: Any) -> None:
        schema, columns, labels = self._read(X, y)
        whose = None if holders is None else holder_numbers(holders, len(labels))
        n_devices = self._n_devices(len(labels)) if whose is None else int(whose.max()) + 1
        study = make_study(schema, n_devices, self._settings(n_devices))
        entropy = entropy_of(self.random_state)
        privacy = self._privacy(study)
        params = replace(params_of(study), epsilon=math.inf) if self._is_bare else params_of(study)
        devices = Devices.of(params, schema.encode(columns), self._encode_labels(schema, labels), whose)
        self.schema_, self.model_, self.privacy_ = schema, simulate(params, devices, entropy).model, privacy

    def _n_devices(self, n_rows: int) -> int:
        """How many devices the rows are dealt to."""
        return -(-n_rows // self.batch_size) if _is_count(self.batch_size) else n_rows

    def _settings(self, n_devices: int) -> dict[str, Any]:
        """The keys of a study."""
        table = {name: getattr(self, name) for name in _TABLE}
        table |= {name: getattr(self, name) for name in _FOLLOWS if getattr(self, name) is not None}
        # What no study may have is left as it stands, to be refused by the name and the number that were given.
        if _is_count(self.n_instances) and self.n_instances <= MAX_INSTANCES:
            table["n_instances"] = min(self.n_instances, n_devices)
        return {
            "protocol": "ddml",
            "variant": self.variant,
            "privacy": {"epsilon": self._study_epsilon, "delta": self.delta, "unit": self.unit, "n_updates": self.n_updates},
            "ddml": table,
        }


class DDMLClassifier(Classifier, _DDML):
    """A logistic model, with more than two classes a multinomial one, learned from noisy updates of many devices (Draw and Discard).

    This simulates a whole population on one machine, in which devices come one after another in a random order. Their number is the
    study's declared size.

    Parameters
    ----------
    epsilon
        The whole budget of one device for the whole fit: each of its updates may cost ``epsilon / n_updates``. Infinite: updates carry
        no noise, and nothing is protected.
    schema
        Public ranges, categories, texts and classes. None reads them from the data and warns (`SchemaInferredWarning`): that is fine in a
        simulation but not a private act, and nothing that is fitted so may be released.
    variant
        ``"plus"``, or ``"paper"`` for what the paper does: Laplace noise, ``merge="discard"``, no averaging and no centring.
    unit
        ``"update"``: epsilon protects everything that a device sends. ``"weight"``: each weight of one update, seen by itself, with
        epsilon / n_updates, which is the paper's reading; everything together then costs as many times epsilon as there are weights.
    delta
        Chance that the guarantee of unit ``update`` fails, with which noise may be Gaussian; 0 for a pure one.
    n_updates, batch_size
        Updates that each device sends, and N_c, the most rows that one of them reads.
    n_instances
        k: instances of the model that are kept; where there are fewer devices, as many as devices.
    merge
        How an update enters the instances: ``"blend"``, or ``"discard"`` as in the paper. None follows the variant.
    learning_rate, clip
        gamma, and the norm to which a gradient is clipped. None leaves them to a rule of size, epsilon, k and the number of weights.
    crosses
        Pairs of features whose products are inputs too.
    decay
        ``"sqrt"`` lets the step fall with the root of time; ``"none"``.
    averaging, centred
        Whether the model is the average over time, and whether inputs are moved to lie around zero. None follows the variant.
    random_state
        None draws from the system's source; an integer, or a generator of NumPy from which one is drawn, makes the run repeatable.

    Attributes
    ----------
    classes_
        Sorted: the values of y. Classes that a given schema declares and y lacks are of y's type too; where one cannot be, or two
        values of y read alike, all are the declared texts.
    privacy_
        The statement, which prints as the label; `NoGuarantee` if epsilon is infinite.
    schema_
        The schema that was given or inferred.
    model_
        What was learned: `shoal.protocols.ddml.model.GLM`.
    n_features_in_, feature_names_in_
        Number of columns of X, and their names if it has some.

    Notes
    -----
    Ref: DDML §III, Algorithms 1 and 2; errata D-01.

    Privacy: unit update, replace, against everyone who sees an update: ``epsilon``, and as many times that as there are weights where it
    is given for the unit weight. Each fit spends it, so that cross-validation and a search over settings on real devices would multiply it.

    Examples
    --------
    >>> from shoal import Categorical, Numeric
    >>> schema = Schema([Numeric("age", 0, 100, missing=False)], label=Categorical("retired", ["no", "yes"]))
    >>> ages = np.arange(4000).reshape(-1, 1) % 100
    >>> clf = DDMLClassifier(epsilon=4.0, schema=schema, random_state=0).fit(ages, np.where(ages[:, 0] > 50, "yes", "no"))
    >>> clf.predict([[10], [90]]), clf.privacy_.epsilon
    (array(['no', 'yes'], dtype='<U3'), 4.0)
    """


class DDMLRegressor(Regressor, _DDML):
    """A linear model of a number, or of its logarithm, learned from noisy updates of many devices (Draw and Discard).

    The label is scaled to [0, 1] by its public range, and predictions stay inside it.

    Parameters
    ----------
    link
        ``"identity"``, or ``"log"``, where inputs multiply the label's distance from the lower end of its range.
    epsilon, schema, variant, unit, delta, n_updates, batch_size, n_instances, merge, learning_rate, clip
        As those of `DDMLClassifier`; the schema's label is `Numeric`.
    crosses, decay, averaging, centred, random_state
        As those of `DDMLClassifier`.

    Attributes
    ----------
    privacy_, schema_, model_, n_features_in_, feature_names_in_
        As those of `DDMLClassifier`.

    Notes
    -----
    Ref: DDML §III-A, equation (1); errata D-01.

    Privacy: as `DDMLClassifier`, in each fit.

    Examples
    --------
    >>> from shoal import Numeric
    >>> schema = Schema([Numeric("age", 0, 20, missing=False)], label=Numeric("height", 0, 2.5))
    >>> ages = np.arange(4000).reshape(-1, 1) % 20
    >>> reg = DDMLRegressor(epsilon=4.0, schema=schema, random_state=0).fit(ages, 0.5 + ages[:, 0] * 0.07)
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
    """Whether something can be counted with; what cannot gets a sentence from the study."""
    return isinstance(value, int | np.integer) and int(value) > 0
