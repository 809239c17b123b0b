"""AnonML with fit and predict.

`fit` runs the population simulator of `shoal.protocols.anonml` on a study made from the settings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shoal.data.schema import Schema
from shoal.estimators.base import SimulatedClassifier, make_study
from shoal.estimators.inputs import make_entropy
from shoal.protocols.anonml.params import AnonMLParams
from shoal.protocols.anonml.population import simulate
from shoal.protocols.anonml.variants import make_script
from shoal.study.anonml import build_params
from shoal.study.spec import Study

_DIGEST_BYTES = 32
_ALL_HONEST = "peers that collude with the coordinator: the simulation assumes that all are honest"


class AnonMLClassifier(SimulatedClassifier):
    """A classifier learned from randomised, anonymous answers of people.

    Each person gives one answer (variant ``plus``), or several as in the paper. This simulates a
    whole population on one machine: one row is one peer, and the number of rows is the study's
    declared size.

    Parameters
    ----------
    epsilon
        The total budget of one person for the whole fit, in basic composition; with
        ``accounting="paper"`` the total of equation 6. Infinite with variant ``paper``: answers
        have no noise, and nothing is protected.
    schema
        Public ranges, categories and classes. None infers them from the data and warns
        (`SchemaInferredWarning`): that is fine in a simulation but not private, and a model fitted
        this way must not be released.
    variant
        ``"plus"``, or ``"paper"`` for the paper's method: probabilities rank rows, and votes
        decide.
    trust
        ``"local"``, or ``"shuffled"`` (variant ``plus``), which also states the guarantee against
        adversaries that see shuffled batches only.
    delta
        Probability that the guarantee after shuffling fails; required with trust ``shuffled``, and
        not allowed otherwise.
    honest_share
        Share of peers that are assumed to be honest, with trust ``shuffled`` only. None assumes
        that all are, as simulated peers are, and the statement says so; a study must declare it.
    accounting
        Meaning of ``epsilon`` in variant ``paper``: ``"plain"``, the sum over all releases, or
        ``"paper"``.
    n_partitions, n_subsets, subset_size
        k_p, k_h and k_s of variant ``paper``; ``plus`` chooses them.
    classifier, scoring
        The classifier of variant ``paper`` for each table (``"logistic"``, ``"tree"``), and the
        score that weights its vote (``"f1"``, ``"auc"``, ``"accuracy"``); a study calls it
        ``score``, which is a method here.
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
        The learned model, with the bins that were used.
    n_features_in_, feature_names_in_
        Number of columns of X, and their names if it has any.

    Notes
    -----
    Ref: AnonML §VI, §VII.

    Privacy: unit person, replace, against everyone: ``epsilon``. Each fit spends it, so that
    cross-validation and a search over settings on real people would multiply it.

    Examples
    --------
    >>> import numpy as np
    >>> from shoal import Categorical, Numeric
    >>> schema = Schema(
    ...     [Numeric("age", 0, 100, missing=False)], label=Categorical("retired", ["no", "yes"])
    ... )
    >>> ages = np.arange(2000).reshape(-1, 1) % 100
    >>> clf = AnonMLClassifier(epsilon=2.0, schema=schema, random_state=0).fit(
    ...     ages, np.where(ages[:, 0] > 65, "yes", "no")
    ... )
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
            A data frame (pandas, polars), or an array with the schema's features as columns, in
            order. One row is one peer.
        y
            The label of each row; with a schema, one of the label's values, or a number or boolean
            with the same text.
        """
        return self._fit(X, y)

    def _learn(self, X: Any, y: Any) -> None:
        schema, columns, labels = self._read_rows(X, y)
        study = make_study(schema, len(labels), self._make_settings())
        entropy = make_entropy(self.random_state)
        # It replaces the digest of the manifest, so that the questions of each peer follow from
        # random_state.
        digest = entropy.bytes(_DIGEST_BYTES)
        privacy = self._make_statement(study, self._notes, digest)
        script = make_script(self._make_params(study), digest)
        learned = simulate(
            script, schema.encode(columns), self._encode_labels(schema, labels), entropy
        )
        self.schema_, self.model_, self.privacy_ = schema, learned.model, privacy

    @property
    def _is_noiseless(self) -> bool:
        return self.variant == "paper" and super()._is_noiseless

    def _make_settings(self) -> dict[str, Any]:
        """Return the keys of a study."""
        settings: dict[str, Any] = {
            "protocol": "anonml",
            "variant": self.variant,
            "trust": self.trust,
            "privacy": {"epsilon": self._study_epsilon, "delta": self.delta},
            "anonml": {"accounting": self.accounting},
        }
        if self.trust == "shuffled" or self.honest_share is not None:
            settings["participation"] = {
                "honest_share": 1.0 if self.honest_share is None else self.honest_share
            }
        if self.variant == "paper":
            names = {"n_partitions", "n_subsets", "subset_size", "classifier"}
            settings["anonml"] |= {name: getattr(self, name) for name in names} | {
                "score": self.scoring
            }
        return settings

    def _make_params(self, study: Study) -> AnonMLParams:
        return (
            replace(build_params(study), epsilon=math.inf)
            if self._is_noiseless
            else build_params(study)
        )

    @property
    def _notes(self) -> Sequence[str]:
        return [_ALL_HONEST] if self.trust == "shuffled" and self.honest_share is None else []
