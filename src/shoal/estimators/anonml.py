"""AnonML behind fit and predict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shoal.domain import Schema
from shoal.estimators.base import Classifier
from shoal.estimators.inputs import entropy_of
from shoal.estimators.studies import make_study
from shoal.protocols.anonml.params import Params
from shoal.protocols.anonml.population import make_script, simulate
from shoal.study.anonml import params_of
from shoal.study.spec import Study

_DIGEST_BYTES = 32
_ALL_HONEST = "peers that side with the coordinator: all of them are taken to be honest here"


class AnonMLClassifier(Classifier):
    """A classifier learned from one randomised, anonymous answer of each person (variant ``plus``), or from the paper's several.

    This simulates a whole population on one machine: one row is one peer, and the number of rows is the study's declared size.

    Parameters
    ----------
    epsilon
        The whole budget of one person for the whole fit, in plain composition; under ``accounting="paper"`` the total of equation 6.
        Infinite with variant ``paper``: answers are not perturbed, and nothing is protected.
    schema
        Public ranges, categories and classes. None reads them from the data and warns (`SchemaInferredWarning`): that is fine in a
        simulation but not a private act, and nothing that is fitted so may be released.
    variant
        ``"plus"``, or ``"paper"`` for what the paper does: its chances rank rows, and votes decide.
    trust
        ``"local"``, or ``"shuffled"`` (variant ``plus``), which also states the guarantee against those who see shuffled batches only.
    delta
        Chance that the guarantee of the crowd fails; with trust ``shuffled`` only, and required there.
    honest_share
        Share of the peers that are taken to be honest, with trust ``shuffled`` only. None takes all for honest, as simulated peers are,
        and the statement says so; a study has to declare it.
    accounting
        What ``epsilon`` is in variant ``paper``: ``"plain"``, the sum of all releases, or ``"paper"``.
    n_partitions, n_subsets, subset_size
        k_p, k_h and k_s of variant ``paper``; ``plus`` chooses by itself.
    classifier, scoring
        What variant ``paper`` learns on each table (``"logistic"``, ``"tree"``), and the score that weighs its vote (``"f1"``, ``"auc"``,
        ``"accuracy"``); a study calls it ``score``, which is a method here.
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
        What was learned, with the bins that were used.
    n_features_in_, feature_names_in_
        Number of columns of X, and their names if it has some.

    Notes
    -----
    Ref: AnonML §VI, §VII.

    Privacy: unit person, replace, against everyone: ``epsilon``. Each fit spends it, so that cross-validation and a search over settings
    on real people would multiply it.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal import Categorical, Numeric
    >>> schema = Schema([Numeric("age", 0, 100, missing=False)], label=Categorical("retired", ["no", "yes"]))
    >>> ages = np.arange(2000).reshape(-1, 1) % 100
    >>> clf = AnonMLClassifier(epsilon=2.0, schema=schema, random_state=0).fit(ages, np.where(ages[:, 0] > 65, "yes", "no"))
    >>> clf.predict([[20], [90]]), clf.privacy_.epsilon
    (array(['no', 'yes'], dtype='<U3'), 2.0)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        schema: Schema | None = None,
        *,
        variant: str = "plus",
        trust: str = "local",
        delta: float = 0.0,
        honest_share: float | None = None,
        accounting: str = "plain",
        n_partitions: int = 5,
        n_subsets: int = 2,
        subset_size: int = 3,
        classifier: str = "logistic",
        scoring: str = "f1",
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.schema = schema
        self.variant = variant
        self.trust = trust
        self.delta = delta
        self.honest_share = honest_share
        self.accounting = accounting
        self.n_partitions = n_partitions
        self.n_subsets = n_subsets
        self.subset_size = subset_size
        self.classifier = classifier
        self.scoring = scoring
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> AnonMLClassifier:
        """Ask every row's peer, count the answers, and learn from the counts.

        Parameters
        ----------
        X
            A dataframe (pandas, polars), or an array whose columns are the schema's features in order; one row is one peer.
        y
            The label of each row; with a schema, one of the label's values, or a number or a truth value that reads like it.
        """
        return self._fit(X, y)

    def _learn(self, X: Any, y: Any) -> None:
        schema, columns, labels = self._read(X, y)
        study = make_study(schema, len(labels), self._settings())
        entropy = entropy_of(self.random_state)
        # In the place of the digest that all parties share, so that who is asked what follows from random_state too.
        digest = entropy.bytes(_DIGEST_BYTES)
        privacy = self._privacy(study, self._notes, digest)
        script = make_script(self._params(study), digest)
        learned = simulate(script, schema.encode(columns), self._encode_labels(schema, labels), entropy)
        self.schema_, self.model_, self.privacy_ = schema, learned.model, privacy

    @property
    def _is_bare(self) -> bool:
        return self.variant == "paper" and super()._is_bare

    def _settings(self) -> dict[str, Any]:
        """The keys of a study."""
        settings: dict[str, Any] = {
            "protocol": "anonml",
            "variant": self.variant,
            "trust": self.trust,
            "privacy": {"epsilon": self._study_epsilon, "delta": self.delta},
            "anonml": {"accounting": self.accounting},
        }
        if self.trust == "shuffled" or self.honest_share is not None:
            settings["participation"] = {"honest_share": 1.0 if self.honest_share is None else self.honest_share}
        if self.variant == "paper":
            names = {"n_partitions", "n_subsets", "subset_size", "classifier"}
            settings["anonml"] |= {name: getattr(self, name) for name in names} | {"score": self.scoring}
        return settings

    def _params(self, study: Study) -> Params:
        return replace(params_of(study), epsilon=math.inf) if self._is_bare else params_of(study)

    @property
    def _notes(self) -> Sequence[str]:
        return [_ALL_HONEST] if self.trust == "shuffled" and self.honest_share is None else []
