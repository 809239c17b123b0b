"""SDQ with fit and predict: a decision tree, and naive Bayes.

`fit` runs the population simulator of `shoal.protocols.sdq` on a study made from the settings.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

from shoal.data.schema import Schema
from shoal.estimators.base import (
    TRUE_SIZE,
    SimulatedClassifier,
    SimulatedEstimator,
    describe_dealt_rows,
    make_study,
)
from shoal.estimators.inputs import assign_holders, make_entropy
from shoal.protocols.sdq.params import CellTable
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.variants import make_sdq_script
from shoal.study.sdq import build_params

_MIN_DATABASES = 3


class _SDQEstimator(SimulatedEstimator):
    """The common part of the tree and naive Bayes."""

    variant: str
    trust: str = "secure-sum"
    max_colluders: int | None
    random_state: Any

    def fit(self, X: Any, y: Any, holders: Any = None) -> Self:
        """Count the rows of each database, sum the counts with noise, and learn from the sums.

        Parameters
        ----------
        X
            A data frame (pandas, polars), or an array with the schema's features as columns, in
            order.
        y
            The label of each row; with a schema, one of the label's values, or a number or boolean
            with the same text.
        holders
            The owner of each row: one database for each name, at least three, or two with trust
            local. None assigns the rows to ten databases and warns (`HoldersDealtWarning`).
        """
        return self._fit(X, y, holders)

    @abstractmethod
    def _make_table(self) -> dict[str, Any]:
        """Return the ``[sdq]`` table of the study without the number of databases.

        None selects the default of the study.
        """

    def _learn(self, X: Any, y: Any, holders: Any) -> None:
        schema, columns, labels = self._read_rows(X, y)
        entropy = make_entropy(self.random_state)
        owners = assign_holders(
            holders,
            len(labels),
            entropy,
            "database",
            2 if self.trust == "local" else _MIN_DATABASES,
        )
        n_databases = int(owners.max()) + 1
        study = make_study(schema, n_databases, self._make_settings(n_databases, len(labels)))
        privacy = self._make_statement(
            study, [TRUE_SIZE, *([describe_dealt_rows("databases")] if holders is None else [])]
        )
        params = (
            replace(build_params(study), epsilon=math.inf)
            if self._is_noiseless
            else build_params(study)
        )
        table = CellTable.from_columns(
            params, schema.encode(columns), self._encode_labels(schema, labels), owners
        )
        self.schema_, self.model_, self.privacy_ = (
            schema,
            simulate(make_sdq_script(params), table, entropy).model,
            privacy,
        )

    def _make_settings(self, n_databases: int, n_rows: int) -> dict[str, Any]:
        """Return the keys of a study."""
        table = {name: value for name, value in self._make_table().items() if value is not None}
        return {
            "protocol": "sdq",
            "variant": self.variant,
            "trust": self.trust,
            "privacy": {"epsilon": self._study_epsilon},
            "participation": {"size": n_rows},
            "sdq": {"n_databases": n_databases, **table},
        }


class SDQTreeClassifier(SimulatedClassifier, _SDQEstimator):
    """A decision tree learned from secure sums of noisy counts of several databases.

    This simulates all databases on one machine: none drops out, and the number of rows is the
    study's declared size.

    Parameters
    ----------
    epsilon
        B: the total budget of one record for the whole fit. Infinite: sums have no noise, and
        nothing is protected.
    schema
        Public ranges, bins, categories and classes; the ranges of numbers without bins are cut into
        equal widths. None infers the schema from the data and warns (`SchemaInferredWarning`): that
        is fine in a simulation but not private, and a model fitted this way must not be released.
    variant
        ``"plus"``, or ``"paper"`` for the paper's SDQ-ID3.
    trust
        ``"secure-sum"``, or ``"local"`` (variant ``paper``) for distributed SuLQ, in which every
        database adds all of the noise.
    depth
        d: most attributes on a path. None selects the default of the variant.
    max_colluders
        C: databases that may collude with the miner. None allows a third of them.
    noise
        ``"all-contribute"``: a share from every database. ``"two-selected"`` (variant ``paper``):
        all of it from two of them, as in the paper, which gives no protection against those two.
    choice
        Variant ``plus``: ``"mpc"`` chooses splits jointly, ``"sums"`` by sums alone. None: jointly
        if an honest majority is certain.
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
        The learned tree: `shoal.protocols.sdq.model.DecisionTree`, with ``to_text()`` and
        ``to_svg()``.
    n_features_in_, feature_names_in_
        Number of columns of X, and their names if it has any.

    Notes
    -----
    Ref: SDQ §IV, §V, Algorithms 1 to 3; errata S-01, S-09.

    Privacy: unit record, add-remove, against the miner and up to ``max_colluders`` databases:
    ``epsilon``. Each fit spends it, so that cross-validation and a search over settings on real
    databases would multiply it.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal import Categorical, Numeric
    >>> schema = Schema(
    ...     [Numeric("age", 0, 100, bins=[30, 65], missing=False)],
    ...     label=Categorical("retired", ["no", "yes"]),
    ... )
    >>> ages, sites = np.arange(2000).reshape(-1, 1) % 100, np.arange(2000) % 5
    >>> clf = SDQTreeClassifier(epsilon=1.0, schema=schema, random_state=0).fit(
    ...     ages, np.where(ages[:, 0] > 65, "yes", "no"), holders=sites
    ... )
    >>> clf.predict([[20], [90]]), clf.privacy_.epsilon
    (array(['no', 'yes'], dtype='<U3'), 1.0)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        schema: Schema | None = None,
        *,
        variant: str = "plus",
        trust: str = "secure-sum",
        depth: int | None = None,
        max_colluders: int | None = None,
        noise: str = "all-contribute",
        choice: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.schema = schema
        self.variant = variant
        self.trust = trust
        self.depth = depth
        self.max_colluders = max_colluders
        self.noise = noise
        self.choice = choice
        self.random_state = random_state

    def _make_table(self) -> dict[str, Any]:
        return {
            "depth": self.depth,
            "max_colluders": self.max_colluders,
            "noise": self.noise,
            "choice": self.choice,
        }


class SDQNaiveBayesClassifier(SimulatedClassifier, _SDQEstimator):
    """Naive Bayes learned from one secure sum of noisy counts of several databases.

    Every feature is counted with the label, in one round; nothing is chosen. This simulates all
    databases on one machine.

    Parameters
    ----------
    epsilon, schema, max_colluders, random_state
        See `SDQTreeClassifier`.
    variant
        ``"plus"``: the paper learns trees only.

    Attributes
    ----------
    classes_, privacy_, schema_, n_features_in_, feature_names_in_
        See `SDQTreeClassifier`.
    model_
        The learned model: `shoal.protocols.additive_model.AdditiveModel`.

    Notes
    -----
    Ref: SDQ §IV, Algorithm 2; errata S-01.

    Privacy: as `SDQTreeClassifier`, in each fit.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal import Categorical, Numeric
    >>> schema = Schema(
    ...     [Numeric("age", 0, 100, bins=[30, 65], missing=False)],
    ...     label=Categorical("retired", ["no", "yes"]),
    ... )
    >>> ages, sites = np.arange(2000).reshape(-1, 1) % 100, np.arange(2000) % 5
    >>> clf = SDQNaiveBayesClassifier(1.0, schema, random_state=0).fit(
    ...     ages, np.where(ages[:, 0] > 65, "yes", "no"), holders=sites
    ... )
    >>> clf.predict([[20], [90]]), clf.privacy_.epsilon
    (array(['no', 'yes'], dtype='<U3'), 1.0)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        schema: Schema | None = None,
        *,
        variant: str = "plus",
        max_colluders: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.schema = schema
        self.variant = variant
        self.max_colluders = max_colluders
        self.random_state = random_state

    def _make_table(self) -> dict[str, Any]:
        return {"learner": "naive-bayes", "max_colluders": self.max_colluders}
