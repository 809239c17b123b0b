"""PFDS behind fit and predict."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Schema
from shoal.estimators.base import Classifier, Regressor
from shoal.estimators.sharing import Sharing


class PFDSClassifier(Classifier, Sharing):
    """A classifier learned from what some organisations share about their rows: private tables, or private trees and data.

    This simulates all holders on one machine: none drops out, and the rows of those who share are the study's declared size.

    Parameters
    ----------
    epsilon
        The whole budget of one record for the whole fit. Infinite: nothing carries noise, and nothing is protected.
    schema
        Public ranges, bins, categories and classes. None reads them from the data and warns (`SchemaInferredWarning`): that is fine in a
        simulation but not a private act, and nothing that is fitted so may be released.
    variant
        ``"plus"``: pooled tables, and rows drawn from them. ``"paper"``: a private tree of each holder, and rows drawn from each tree.
    trust
        ``"local"``: every holder adds all of the noise. ``"secure-sum"`` (variant ``plus``): only sums are read, with one share of the
        noise from each holder.
    delta
        Chance that the guarantee fails, with trust ``secure-sum`` only, for Gaussian noise; 0 for a pure one.
    max_colluders
        C: holders that may side with those who read the sums. None takes a third of them.
    n_sharers
        How many of the holders share, drawn at random. The others read the release, and have home models too. None: all of them.
    learner
        What is trained on the released rows, in the cells of the public coding: ``"logistic"``, ``"svm"``, or any classifier of
        scikit-learn. None: the pooled model itself predicts (variant ``plus``), or logistic regression does (variant ``paper``).
    max_depth, n_candidates, n_levels
        h_max, t and p of variant ``paper``. None follows a study's own rule.
    labelling
        Variant ``paper``: whose trees label released rows, those of all (``"shared"``) or of their holder (``"own"``, PFDS(s)).
    projection
        Variant ``paper``: whether the counts of a tree are made consistent; False is PFDS-.
    random_state
        None draws from the system's source; an integer, or a generator of NumPy from which one is drawn, makes the run repeatable.

    Attributes
    ----------
    classes_
        Sorted: the values of y. Classes that a given schema declares and y lacks are of y's type too; where one cannot be, or two
        values of y read alike, all are the declared texts.
    datasets_
        What was released, as `SharedDataset`: one of the pool with as many rows as were declared, or one of each who shares.
    predictors_
        The pooled `shoal.protocols.pfds.model.Model`; of variant ``paper`` the tree of each who shares.
    sharers_
        The names of those who share.
    privacy_
        The statement, which prints as the label; `NoGuarantee` if epsilon is infinite.
    model_
        What predicts from the release alone: the pooled model, or what was trained on the released rows.
    schema_
        The schema that was given or inferred.
    n_features_in_, feature_names_in_
        Number of columns of X, and their names if it has some.

    Notes
    -----
    Ref: PFDS Algorithms 1 to 5; errata P-01 to P-09.

    Privacy: unit record, add-remove, against all who read the release, with trust ``secure-sum`` also up to ``max_colluders`` holders:
    ``epsilon``. Each fit spends it, so that cross-validation and a search over settings on real rows would multiply it. What
    ``holder=`` predicts with contains that holder's rows without noise: it is not in a copy of the estimator, nor in a file.

    Examples
    --------
    >>> from shoal import Categorical, Numeric
    >>> schema = Schema([Numeric("age", 0, 100, missing=False)], label=Categorical("retired", ["no", "yes"]))
    >>> ages, sites = np.arange(2000).reshape(-1, 1) % 100, np.arange(2000) % 5
    >>> clf = PFDSClassifier(epsilon=1.0, schema=schema, random_state=0).fit(ages, np.where(ages[:, 0] > 65, "yes", "no"), holders=sites)
    >>> clf.predict([[20], [90]]), clf.predict([[20], [90]], holder=3)
    (array(['no', 'yes'], dtype='<U3'), array(['no', 'yes'], dtype='<U3'))
    >>> len(clf.datasets_[0]), clf.privacy_.epsilon
    (2000, 1.0)
    """

    def predict(self, X: Any, holder: Any = None) -> npt.NDArray[Any]:
        """The most likely class of each row, by the release alone, or by the model that a holder has at home."""
        return self._classes(self._encode(X), self._model_of(holder))

    def predict_proba(self, X: Any, holder: Any = None) -> npt.NDArray[np.float64]:
        """The chance of each class, ``(n, L)``, in the order of `classes_`; by the release alone, or at home with a holder."""
        return self._chances(self._encode(X), self._model_of(holder))

    def _labels(self, encoded: npt.NDArray[Any]) -> npt.NDArray[Any]:
        classes: npt.NDArray[Any] = self._class_of_position[encoded]
        return classes


class PFDSRegressor(Regressor, Sharing):
    """Numbers predicted by what some organisations share about their rows: private tables, or private trees and data.

    This simulates all holders on one machine, as `PFDSClassifier` does.

    Parameters
    ----------
    epsilon, schema, variant, trust, delta, max_colluders, n_sharers, max_depth, n_candidates, n_levels, labelling, projection, random_state
        As those of `PFDSClassifier`; the schema's label is a number, whose range is public.
    learner
        ``"ridge"``, or any regressor of scikit-learn. None: the pooled model (variant ``plus``), or ridge regression (variant ``paper``).
    n_buckets
        b of variant ``paper``: parts of the label's range that are told apart. None follows a study's own rule.

    Attributes
    ----------
    datasets_, predictors_, sharers_, privacy_, model_, schema_, n_features_in_, feature_names_in_
        As those of `PFDSClassifier`.

    Notes
    -----
    Ref: PFDS §3.1, Algorithms 1 to 5.

    Privacy: as `PFDSClassifier`, in each fit.

    Examples
    --------
    >>> from shoal import Numeric
    >>> schema = Schema([Numeric("age", 0, 20, missing=False)], label=Numeric("height", 0, 2.5))
    >>> ages, sites = np.arange(2000).reshape(-1, 1) % 20, np.arange(2000) % 5
    >>> reg = PFDSRegressor(epsilon=1.0, schema=schema, random_state=0).fit(ages, 0.5 + ages[:, 0] * 0.07, holders=sites)
    >>> short, tall = reg.predict([[2], [18]])
    >>> bool(tall - short > 0.5)
    True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        schema: Schema | None = None,
        *,
        variant: str = "plus",
        trust: str = "local",
        delta: float = 0.0,
        max_colluders: int | None = None,
        n_sharers: int | None = None,
        learner: Any = None,
        max_depth: int | None = None,
        n_candidates: int | None = None,
        n_levels: int | None = None,
        n_buckets: int | None = None,
        labelling: str = "shared",
        projection: bool = True,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            epsilon,
            schema,
            variant=variant,
            trust=trust,
            delta=delta,
            max_colluders=max_colluders,
            n_sharers=n_sharers,
            learner=learner,
            max_depth=max_depth,
            n_candidates=n_candidates,
            n_levels=n_levels,
            labelling=labelling,
            projection=projection,
            random_state=random_state,
        )
        self.n_buckets = n_buckets

    def predict(self, X: Any, holder: Any = None) -> npt.NDArray[np.float64]:
        """The number of each row, inside the label's range, by the release alone, or by the model that a holder has at home."""
        columns = self._encode(X)
        numbers: npt.NDArray[np.float64] = self._model_of(holder).predict(columns)
        return numbers
