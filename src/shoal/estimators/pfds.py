"""PFDSClassifier and PFDSRegressor: PFDS with fit and predict.

`fit` simulates all holders that share, and stores the release. `predict` uses the release alone, or
the personal model of a holder, which is trained on the release and the holder's own rows. A
personal model contains rows without noise: it must not be copied, pickled or released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Self, SupportsIndex

import numpy as np
import numpy.typing as npt
from sklearn.base import clone, is_regressor

from shoal.data.cells import as_column, cell_text
from shoal.data.schema import Schema
from shoal.entropy import Entropy, SeededEntropy
from shoal.estimators.base import (
    TRUE_SIZE,
    SimulatedClassifier,
    SimulatedEstimator,
    SimulatedRegressor,
    describe_dealt_rows,
    make_study,
)
from shoal.estimators.inputs import EstimatorError, assign_holders, make_entropy
from shoal.estimators.released_data import (
    ReleasedDataModel,
    SharedDataset,
    convert_to_frame,
    make_learner,
)
from shoal.protocols.pfds.dataset import Dataset, draw_dataset
from shoal.protocols.pfds.model import UnreleasedPredictor, copy_forbidden_error
from shoal.protocols.pfds.paper.population import simulate_paper
from shoal.protocols.pfds.params import Ints, PFDSParams, PFDSRows
from shoal.protocols.pfds.personal_model import fit_personal_model
from shoal.protocols.pfds.population import simulate
from shoal.study.pfds import build_params
from shoal.text import format_count


class PersonalModels:
    """The personal models of all holders, each made at its first use.

    They stay in the process that has the rows.

    Parameters
    ----------
    make
        Returns the personal model of a holder by number; it has the rows.

    Examples
    --------
    >>> models = PersonalModels(["north", "south"], lambda number: f"the model of {number}")
    >>> models.get("south"), models
    ('the model of 1', <personal models of 2 holders: not released>)
    """

    __slots__ = ("__made", "__make", "__numbers")

    def __init__(self, names: Sequence[Any], make: Callable[[int], Any]) -> None:
        # Names with the same text are one holder, as in `number_holders`.
        self.__numbers = {cell_text(name): number for number, name in enumerate(names)}
        self.__make = make
        self.__made: dict[int, Any] = {}

    def get(self, holder: Any) -> Any:
        """Return the personal model of a holder by name."""
        number = self.__numbers.get(cell_text(holder))
        if number is None:
            what = (
                "No holder with this name has rows in this fit, which has "
                f"{format_count(len(self.__numbers), 'holder')}."
            )
            raise EstimatorError(
                "USAGE-001",
                what,
                fix="Give a name from fit(X, y, holders=...), or a number from 0 if none were "
                "given.",
            )
        if number not in self.__made:
            self.__made[number] = self.__make(number)
        return self.__made[number]

    def __repr__(self) -> str:
        return f"<personal models of {format_count(len(self.__numbers), 'holder')}: not released>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise copy_forbidden_error("The personal models of holders")


_DIGEST_BYTES = 32
_MIN_IN_A_SUM = 3
_TABLE = (
    "max_colluders",
    "max_depth",
    "n_candidates",
    "n_levels",
    "n_buckets",
    "labelling",
    "projection",
)
"""Settings with the same names in ``[pfds]``.

Default values are omitted: many settings are not allowed in plus.
"""


class PFDSEstimator(SimulatedEstimator):
    """The common part of the two estimators: simulation of the release, and prediction."""

    n_buckets: int | None = None
    datasets_: tuple[SharedDataset, ...]
    predictors_: tuple[Any, ...]
    sharers_: tuple[Any, ...]
    _personal_models: PersonalModels

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
        labelling: str = "shared",
        projection: bool = True,
        random_state: Any = None,
    ) -> None:
        self.epsilon = epsilon
        self.schema = schema
        self.variant = variant
        self.trust = trust
        self.delta = delta
        self.max_colluders = max_colluders
        self.n_sharers = n_sharers
        self.learner = learner
        self.max_depth = max_depth
        self.n_candidates = n_candidates
        self.n_levels = n_levels
        self.labelling = labelling
        self.projection = projection
        self.random_state = random_state

    def fit(self, X: Any, y: Any, holders: Any = None) -> Self:
        """Simulate the release of the sharing holders, with noise, and learn from it.

        Parameters
        ----------
        X
            A data frame (pandas, polars), or an array with the schema's features as columns, in
            order.
        y
            The label of each row. With a schema: one of its label's values, or a number in its
            range.
        holders
            The owner of each row: one organisation for each name; at least three must share with
            secure sums. None assigns the rows to ten holders, named 0 to 9, and warns
            (`HoldersDealtWarning`).
        """
        return self._fit(X, y, holders)

    def _learn(self, X: Any, y: Any, holders: Any) -> None:
        schema, columns, labels = self._read_rows(X, y)
        learner = None if self._is_pooled else self._make_learner()
        entropy = make_entropy(self.random_state)
        minimum = _MIN_IN_A_SUM if self.trust == "secure-sum" else 1
        owners = assign_holders(holders, len(labels), entropy, "holder", minimum)
        names = _list_holder_names(holders, owners)
        sharers = self._draw_sharers(len(names), minimum, entropy)
        is_shared = np.isin(owners, sharers)
        study = make_study(
            schema, len(sharers), self._make_settings(len(sharers), int(is_shared.sum()))
        )
        privacy = self._make_statement(
            study, [TRUE_SIZE, *([describe_dealt_rows("holders")] if holders is None else [])]
        )
        params = (
            replace(build_params(study), epsilon=math.inf)
            if self._is_noiseless
            else build_params(study)
        )
        rows = Dataset(schema.encode(columns), self._encode_labels(schema, labels))
        shared = np.searchsorted(sharers, owners[is_shared])
        datasets, predictors = _simulate_release(
            params, _select_rows(rows, is_shared), shared, entropy
        )
        self.schema_, self.privacy_, self.predictors_ = schema, privacy, predictors
        self.model_ = (
            predictors[0] if learner is None else ReleasedDataModel.train(params, learner, datasets)
        )
        self.sharers_ = tuple(names[number] for number in sharers)
        shared_by = self.sharers_ if self.variant == "paper" else (None,)
        self.datasets_ = tuple(
            self._make_shared_dataset(X, dataset, owner)
            for dataset, owner in zip(datasets, shared_by, strict=True)
        )
        # Folds of a holder's own rows need no secret source. With a seed, personal models do not
        # depend on the order in which they are requested.
        folds = SeededEntropy(entropy.bytes(_DIGEST_BYTES).hex())

        def make_personal_model(number: int) -> UnreleasedPredictor:
            own = _select_rows(rows, owners == number)
            if learner is None:
                return fit_personal_model(
                    predictors[0],
                    PFDSRows.from_columns(params, own.columns, own.labels),
                    folds.spawn(number),
                )
            return UnreleasedPredictor(
                ReleasedDataModel.train(params, clone(learner), [*datasets, own])
            )

        self._personal_models = PersonalModels(names, make_personal_model)

    @property
    def _is_pooled(self) -> bool:
        """True if the pooled model predicts, and no other model is trained."""
        return self.learner is None and self.variant == "plus"

    def _make_learner(self) -> Any:
        is_number = is_regressor(self)
        default = "ridge" if is_number else "logistic"
        return make_learner(default if self.learner is None else self.learner, is_number)

    def _draw_sharers(self, n_holders: int, minimum: int, entropy: Entropy) -> Ints:
        """Return the numbers of the holders that share, in increasing order."""
        n = n_holders if self.n_sharers is None else self.n_sharers
        if (
            isinstance(n, bool)
            or not isinstance(n, int | np.integer)
            or not minimum <= n <= n_holders
        ):
            what = (
                f"n_sharers = {self.n_sharers!r:.60}, but "
                f"{format_count(n_holders, 'holder')} have rows."
            )
            raise EstimatorError(
                "SPEC-021",
                what,
                fix=f"Give a whole number from {minimum} to {n_holders}, or None for all of them.",
            )
        order = np.argsort(entropy.words(n_holders, np.uint64), kind="stable")
        return np.sort(order[:n])

    def _make_settings(self, n_sharers: int, n_rows: int) -> dict[str, Any]:
        """Return the keys of a study."""
        defaults = {"labelling": "shared", "projection": True}
        table = {name: getattr(self, name) for name in _TABLE}
        chosen = {
            name: value
            for name, value in table.items()
            if value is not None and not (name in defaults and value == defaults[name])
        }
        return {
            "protocol": "pfds",
            "variant": self.variant,
            "trust": self.trust,
            "privacy": {"epsilon": self._study_epsilon, "delta": self.delta},
            "participation": {"size": n_rows},
            "pfds": {"n_holders": n_sharers, **chosen},
        }

    def _make_shared_dataset(self, X: Any, dataset: Dataset, holder: Any) -> SharedDataset:
        columns = dataset.decode(self.schema_)
        columns.popitem()
        return SharedDataset(
            convert_to_frame(X, columns), self._decode_labels(dataset.labels), holder
        )

    def _decode_labels(self, encoded: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return labels of released rows with the type of y."""
        return encoded

    def _find_model(self, holder: Any) -> Any:
        """Return the model of the release, or the personal model of a holder."""
        if holder is None:
            return self.model_
        if not hasattr(self, "_personal_models"):
            raise EstimatorError(
                "USAGE-001",
                "This estimator was copied or read from a file, and does not contain the holders' "
                "rows.",
                why="A personal model contains its holder's own rows without noise, and is never "
                "released.",
                fix="Fit again with the rows, or predict without holder.",
            )
        return self._personal_models.get(holder)

    def __getstate__(self) -> dict[str, Any]:
        # A copy, or a file, contains the release only, not the rows.
        return {
            name: value
            for name, value in super().__getstate__().items()
            if name != "_personal_models"
        }


def _list_holder_names(holders: Any, owners: Ints) -> list[Any]:
    """Return the names of the holders in the order of their numbers."""
    first = np.unique(owners, return_index=True)[1]
    names = np.arange(len(first)) if holders is None else as_column("holders", holders)[first]
    return list(names.tolist())


def _select_rows(rows: Dataset, which: npt.NDArray[np.bool_]) -> Dataset:
    return Dataset(
        {name: column[which] for name, column in rows.columns.items()}, rows.labels[which]
    )


def _simulate_release(
    params: PFDSParams, rows: Dataset, owners: Ints, entropy: Entropy
) -> tuple[tuple[Dataset, ...], tuple[Any, ...]]:
    """Return the datasets and predictors that the holders of these rows share."""
    if params.variant == "paper":
        shared = simulate_paper(params, rows.columns, rows.labels, owners, entropy)
        return shared.datasets, shared.trees
    # It replaces the digest of the manifest, so that the questions of each holder follow from
    # random_state.
    digest = entropy.bytes(_DIGEST_BYTES)
    model = simulate(
        params, PFDSRows.from_columns(params, rows.columns, rows.labels, owners), digest, entropy
    ).model
    return (draw_dataset(model, params.size, entropy),), (model,)


class PFDSClassifier(SimulatedClassifier, PFDSEstimator):
    """A classifier learned from data that organisations release about their rows.

    The release consists of private tables, or of private trees and datasets. This simulates all
    holders on one machine: none drops out, and the rows of the sharing holders are the study's
    declared size.

    Parameters
    ----------
    epsilon
        The total budget of one record for the whole fit. Infinite: nothing has noise, and nothing
        is protected.
    schema
        Public ranges, bins, categories and classes. None infers them from the data and warns
        (`SchemaInferredWarning`): that is fine in a simulation but not private, and a model fitted
        this way must not be released.
    variant
        ``"plus"``: pooled tables, and rows sampled from them. ``"paper"``: a private tree of each
        holder, and rows sampled from each tree.
    trust
        ``"local"``: every holder adds all of the noise. ``"secure-sum"`` (variant ``plus``): only
        sums are read, with a share of the noise from each holder.
    delta
        Limits how often the loss may exceed epsilon; with trust ``secure-sum`` only, for Gaussian
        noise. 0 is pure differential privacy.
    max_colluders
        C: holders that may collude with readers of the sums. None allows a third of them.
    n_sharers
        Number of holders that share, chosen at random. The others read the release, and have
        personal models too. None: all of them.
    learner
        The model trained on the released rows, with the cells of the public coding as inputs:
        ``"logistic"``, ``"svm"``, or any scikit-learn classifier. None: the pooled model (variant
        ``plus``), or logistic regression (variant ``paper``).
    max_depth, n_candidates, n_levels
        h_max, t and p of variant ``paper``. None selects the default of the study.
    labelling
        Variant ``paper``: the trees that label released rows, those of all holders (``"shared"``)
        or of the same holder (``"own"``, PFDS(s)).
    projection
        Variant ``paper``: True to make the counts of a tree consistent; False is PFDS-.
    random_state
        None uses the system's random source. An integer, or a NumPy generator that draws one, makes
        the run repeatable.

    Attributes
    ----------
    classes_
        The sorted values of y. Classes that the schema declares and y lacks are converted to y's
        type; if that is impossible, or two values of y have the same text, all classes are the
        declared texts.
    datasets_
        Released rows as `SharedDataset`: one dataset of the pool with the declared number of rows,
        or one of each sharing holder.
    predictors_
        The pooled `shoal.protocols.pfds.model.PooledModel`; in variant ``paper`` the tree of each
        sharing holder.
    sharers_
        The names of the sharing holders.
    privacy_
        The statement, which prints as the label; `NoGuarantee` if epsilon is infinite.
    model_
        The model that predicts from the release alone: the pooled model, or the trained learner.
    schema_
        The given or inferred schema.
    n_features_in_, feature_names_in_
        Number of columns of X, and their names if it has any.

    Notes
    -----
    Ref: PFDS Algorithms 1 to 5; errata P-01 to P-09.

    Privacy: unit record, add-remove, against all who read the release, with trust ``secure-sum``
    also up to ``max_colluders`` holders: ``epsilon``. Each fit spends it, so that cross-validation
    and a search over settings on real rows would multiply it. The personal model that ``holder=``
    selects contains that holder's rows without noise; a copy or a file of the estimator omits it.

    Examples
    --------
    >>> from shoal import Categorical, Numeric
    >>> schema = Schema(
    ...     [Numeric("age", 0, 100, missing=False)], label=Categorical("retired", ["no", "yes"])
    ... )
    >>> ages, sites = np.arange(2000).reshape(-1, 1) % 100, np.arange(2000) % 5
    >>> clf = PFDSClassifier(epsilon=1.0, schema=schema, random_state=0).fit(
    ...     ages, np.where(ages[:, 0] > 65, "yes", "no"), holders=sites
    ... )
    >>> clf.predict([[20], [90]]), clf.predict([[20], [90]], holder=3)
    (array(['no', 'yes'], dtype='<U3'), array(['no', 'yes'], dtype='<U3'))
    >>> len(clf.datasets_[0]), clf.privacy_.epsilon
    (2000, 1.0)
    """

    def predict(self, X: Any, holder: Any = None) -> npt.NDArray[Any]:
        """Return the most likely class of each row.

        Without `holder` the release alone predicts, else the personal model of that holder.
        """
        return self._predict_classes(self._encode(X), self._find_model(holder))

    def predict_proba(self, X: Any, holder: Any = None) -> npt.NDArray[np.float64]:
        """Return the probability of each class, ``(n, L)``, in the order of `classes_`.

        Without `holder` the release alone predicts, else the personal model of that holder.
        """
        return self._predict_probabilities(self._encode(X), self._find_model(holder))

    def _decode_labels(self, encoded: npt.NDArray[Any]) -> npt.NDArray[Any]:
        classes: npt.NDArray[Any] = self._classes_by_position[encoded]
        return classes


class PFDSRegressor(SimulatedRegressor, PFDSEstimator):
    """A regressor learned from data that organisations release about their rows.

    The release consists of private tables, or of private trees and datasets. This simulates all
    holders on one machine, as `PFDSClassifier` does.

    Parameters
    ----------
    epsilon, schema, variant, trust, delta, max_colluders, n_sharers, random_state
        See `PFDSClassifier`; the schema's label is a number with a public range.
    max_depth, n_candidates, n_levels, labelling, projection
        See `PFDSClassifier`.
    learner
        ``"ridge"``, or any scikit-learn regressor. None: the pooled model (variant ``plus``), or
        ridge regression (variant ``paper``).
    n_buckets
        b of variant ``paper``: number of parts into which the label's range is cut. None selects
        the default of the study.

    Attributes
    ----------
    datasets_, predictors_, sharers_, privacy_, model_, schema_, n_features_in_, feature_names_in_
        See `PFDSClassifier`.

    Notes
    -----
    Ref: PFDS §3.1, Algorithms 1 to 5.

    Privacy: as `PFDSClassifier`, in each fit.

    Examples
    --------
    >>> from shoal import Numeric
    >>> schema = Schema([Numeric("age", 0, 20, missing=False)], label=Numeric("height", 0, 2.5))
    >>> ages, sites = np.arange(2000).reshape(-1, 1) % 20, np.arange(2000) % 5
    >>> reg = PFDSRegressor(epsilon=1.0, schema=schema, random_state=0).fit(
    ...     ages, 0.5 + ages[:, 0] * 0.07, holders=sites
    ... )
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
        """Return the number of each row, inside the label's range.

        Without `holder` the release alone predicts, else the personal model of that holder.
        """
        columns = self._encode(X)
        numbers: npt.NDArray[np.float64] = self._find_model(holder).predict(columns)
        return numbers
