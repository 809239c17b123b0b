"""SDQ behind fit and predict."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

from shoal.domain import Schema
from shoal.estimators.base import Classifier, Estimator
from shoal.estimators.inputs import dealt_or_named, entropy_of
from shoal.estimators.studies import TRUE_SIZE, make_study, not_named
from shoal.protocols.sdq.params import Table
from shoal.protocols.sdq.population import simulate
from shoal.protocols.sdq.scripts import script_of
from shoal.study.sdq import params_of

_FEWEST = 3


class _SDQ(Estimator):
    """What the tree and naive Bayes share."""

    variant: str
    trust: str = "secure-sum"
    max_colluders: int | None
    random_state: Any

    def fit(self, X: Any, y: Any, holders: Any = None) -> Self:
        """Let the databases count their rows, sum the counts with noise, and learn from the sums.

        Parameters
        ----------
        X
            A dataframe (pandas, polars), or an array whose columns are the schema's features in order.
        y
            The label of each row; with a schema, one of the label's values, or a number or a truth value that reads like it.
        holders
            Who holds each row: one database for each name, three or more, or two with trust local. None deals the rows to ten databases
            and warns (`HoldersDealtWarning`).
        """
        return self._fit(X, y, holders)

    @abstractmethod
    def _table(self) -> dict[str, Any]:
        """What the study says in ``[sdq]`` besides the number of databases; None follows the study's own rule."""

    def _learn(self, X: Any, y: Any, holders: Any) -> None:
        schema, columns, labels = self._read(X, y)
        entropy = entropy_of(self.random_state)
        whose = dealt_or_named(holders, len(labels), entropy, "database", 2 if self.trust == "local" else _FEWEST)
        n_databases = int(whose.max()) + 1
        study = make_study(schema, n_databases, self._settings(n_databases, len(labels)))
        privacy = self._privacy(study, [TRUE_SIZE, *([not_named("databases")] if holders is None else [])])
        params = replace(params_of(study), epsilon=math.inf) if self._is_bare else params_of(study)
        table = Table.of(params, schema.encode(columns), self._encode_labels(schema, labels), whose)
        self.schema_, self.model_, self.privacy_ = schema, simulate(script_of(params), table, entropy).model, privacy

    def _settings(self, n_databases: int, n_rows: int) -> dict[str, Any]:
        """The keys of a study."""
        table = {name: value for name, value in self._table().items() if value is not None}
        return {
            "protocol": "sdq",
            "variant": self.variant,
            "trust": self.trust,
            "privacy": {"epsilon": self._study_epsilon},
            "participation": {"size": n_rows},
            "sdq": {"n_databases": n_databases, **table},
        }


class SDQTreeClassifier(Classifier, _SDQ):
    """A decision tree learned from secure sums of the counts of some databases, which carry their own noise.

    This simulates all databases on one machine: none drops out, and the number of rows is the study's declared size.

    Parameters
    ----------
    epsilon
        B: the whole budget of one record for the whole fit. Infinite: sums carry no noise, and nothing is protected.
    schema
        Public ranges, bins, categories and classes; numbers without bins are cut into equal widths of their range. None reads them from
        the data and warns (`SchemaInferredWarning`): that is fine in a simulation but not a private act, and nothing that is fitted so may
        be released.
    variant
        ``"plus"``, or ``"paper"`` for the paper's SDQ-ID3.
    trust
        ``"secure-sum"``, or ``"local"`` (variant ``paper``) for distributed SuLQ, where every database adds all of the noise.
    depth
        d: most attributes on a path. None follows the variant.
    max_colluders
        C: databases that may side with the miner. None takes a third of them.
    noise
        ``"all-contribute"``: a share from every database. ``"two-selected"`` (variant ``paper``): all of it from two of them, as in the
        paper, which protects nothing from those two.
    choice
        Variant ``plus``: ``"mpc"`` chooses splits jointly, ``"sums"`` by sums alone. None: jointly, where an honest majority is sure.
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
        What was learned: `shoal.protocols.sdq.model.Tree`, with ``to_text()`` and ``to_svg()``.
    n_features_in_, feature_names_in_
        Number of columns of X, and their names if it has some.

    Notes
    -----
    Ref: SDQ §IV, §V, Algorithms 1 to 3; errata S-01, S-09.

    Privacy: unit record, add-remove, against the miner and up to ``max_colluders`` databases: ``epsilon``. Each fit spends it, so that
    cross-validation and a search over settings on real databases would multiply it.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal import Categorical, Numeric
    >>> schema = Schema([Numeric("age", 0, 100, bins=[30, 65], missing=False)], label=Categorical("retired", ["no", "yes"]))
    >>> ages, sites = np.arange(2000).reshape(-1, 1) % 100, np.arange(2000) % 5
    >>> clf = SDQTreeClassifier(epsilon=1.0, schema=schema, random_state=0).fit(ages, np.where(ages[:, 0] > 65, "yes", "no"), holders=sites)
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

    def _table(self) -> dict[str, Any]:
        return {"depth": self.depth, "max_colluders": self.max_colluders, "noise": self.noise, "choice": self.choice}


class SDQNaiveBayesClassifier(Classifier, _SDQ):
    """Naive Bayes learned from one secure sum of the counts of some databases, which carries its own noise.

    Every feature is counted with the label, in one round; nothing is chosen. This simulates all databases on one machine.

    Parameters
    ----------
    epsilon, schema, max_colluders, random_state
        As those of `SDQTreeClassifier`.
    variant
        ``"plus"``: the paper learns trees only.

    Attributes
    ----------
    classes_, privacy_, schema_, n_features_in_, feature_names_in_
        As those of `SDQTreeClassifier`.
    model_
        What was learned: `shoal.protocols.anonml.model.AdditiveModel`.

    Notes
    -----
    Ref: SDQ §IV, Algorithm 2; errata S-01.

    Privacy: as `SDQTreeClassifier`, in each fit.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal import Categorical, Numeric
    >>> schema = Schema([Numeric("age", 0, 100, bins=[30, 65], missing=False)], label=Categorical("retired", ["no", "yes"]))
    >>> ages, sites = np.arange(2000).reshape(-1, 1) % 100, np.arange(2000) % 5
    >>> clf = SDQNaiveBayesClassifier(1.0, schema, random_state=0).fit(ages, np.where(ages[:, 0] > 65, "yes", "no"), holders=sites)
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

    def _table(self) -> dict[str, Any]:
        return {"learner": "naive-bayes", "max_colluders": self.max_colluders}
