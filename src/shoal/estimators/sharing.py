"""What the two estimators of PFDS have in common: who shares, what is released, and what stays at home."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import clone, is_regressor

from shoal.cells import as_column
from shoal.domain import Schema
from shoal.entropy import Entropy, SeededEntropy
from shoal.estimators.base import Estimator
from shoal.estimators.homes import Homes
from shoal.estimators.inputs import EstimatorError, dealt_or_named, entropy_of
from shoal.estimators.learners import Learned, make_learner
from shoal.estimators.shared import SharedDataset, frame_like
from shoal.estimators.studies import TRUE_SIZE, make_study, not_named
from shoal.names import counted
from shoal.protocols.pfds.dataset import Dataset, draw
from shoal.protocols.pfds.home import at_home
from shoal.protocols.pfds.model import Kept
from shoal.protocols.pfds.paper_population import simulate_paper
from shoal.protocols.pfds.params import Ints, Params, Rows
from shoal.protocols.pfds.population import simulate
from shoal.study.pfds import params_of

_DIGEST_BYTES = 32
_FEWEST_IN_A_SUM = 3
_TABLE = ("max_colluders", "max_depth", "n_candidates", "n_levels", "n_buckets", "labelling", "projection")
"""Settings that a study has under the same names in ``[pfds]``. What is as it would be anyway is not said: much has no meaning in plus."""


class Sharing(Estimator):
    """Fits by a simulation of all who share, and predicts by the release, or at home."""

    n_buckets: int | None = None
    datasets_: tuple[SharedDataset, ...]
    predictors_: tuple[Any, ...]
    sharers_: tuple[Any, ...]
    _homes: Homes

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
        """Let those who share release what their rows say, with noise, and learn from the release.

        Parameters
        ----------
        X
            A dataframe (pandas, polars), or an array whose columns are the schema's features in order.
        y
            The label of each row, which a given schema declares: one of its values, or a number in its range.
        holders
            Who holds each row: one organisation for each name; three or more share where their counts are summed. None deals the rows
            to ten holders, called 0 to 9, and warns (`HoldersDealtWarning`).
        """
        return self._fit(X, y, holders)

    def _learn(self, X: Any, y: Any, holders: Any) -> None:
        schema, columns, labels = self._read(X, y)
        learner = None if self._is_pooled else self._make_learner()
        entropy = entropy_of(self.random_state)
        fewest = _FEWEST_IN_A_SUM if self.trust == "secure-sum" else 1
        whose = dealt_or_named(holders, len(labels), entropy, "holder", fewest)
        names = _names(holders, whose)
        sharers = self._draw_sharers(len(names), fewest, entropy)
        is_shared = np.isin(whose, sharers)
        study = make_study(schema, len(sharers), self._settings(len(sharers), int(is_shared.sum())))
        privacy = self._privacy(study, [TRUE_SIZE, *([not_named("holders")] if holders is None else [])])
        params = replace(params_of(study), epsilon=math.inf) if self._is_bare else params_of(study)
        rows = Dataset(schema.encode(columns), self._encode_labels(schema, labels))
        shared = np.searchsorted(sharers, whose[is_shared])
        datasets, predictors = _released(params, _taken(rows, is_shared), shared, entropy)
        self.schema_, self.privacy_, self.predictors_ = schema, privacy, predictors
        self.model_ = predictors[0] if learner is None else Learned.of(params, learner, datasets)
        self.sharers_ = tuple(names[number] for number in sharers)
        owners = self.sharers_ if self.variant == "paper" else (None,)
        self.datasets_ = tuple(self._shown(X, one, owner) for one, owner in zip(datasets, owners, strict=True))
        # Folds of own rows need no secret source, and a seed makes home models the same in whatever order they are asked for.
        folds = SeededEntropy(entropy.bytes(_DIGEST_BYTES).hex())

        def make_home(number: int) -> Kept:
            own = _taken(rows, whose == number)
            if learner is None:
                return at_home(predictors[0], Rows.of(params, own.columns, own.labels), folds.spawn(number))
            return Kept(Learned.of(params, clone(learner), [*datasets, own]))

        self._homes = Homes(names, make_home)

    @property
    def _is_pooled(self) -> bool:
        """Whether the pooled model itself predicts, and nothing else is trained on the released rows."""
        return self.learner is None and self.variant == "plus"

    def _make_learner(self) -> Any:
        is_number = is_regressor(self)
        default = "ridge" if is_number else "logistic"
        return make_learner(default if self.learner is None else self.learner, is_number)

    def _draw_sharers(self, n_holders: int, fewest: int, entropy: Entropy) -> Ints:
        """The numbers of those who share, rising."""
        n = n_holders if self.n_sharers is None else self.n_sharers
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or not fewest <= n <= n_holders:
            what = f"n_sharers = {self.n_sharers!r:.60}, where {counted(n_holders, 'holder')} have rows."
            raise EstimatorError("SPEC-021", what, fix=f"Give a whole number from {fewest} to {n_holders}, or None for all of them.")
        order = np.argsort(entropy.words(n_holders, np.uint64), kind="stable")
        return np.sort(order[:n])

    def _settings(self, n_sharers: int, n_rows: int) -> dict[str, Any]:
        """The keys of a study."""
        unsaid = {"labelling": "shared", "projection": True}
        table = {name: getattr(self, name) for name in _TABLE}
        said = {name: value for name, value in table.items() if value is not None and not (name in unsaid and value == unsaid[name])}
        return {
            "protocol": "pfds",
            "variant": self.variant,
            "trust": self.trust,
            "privacy": {"epsilon": self._study_epsilon, "delta": self.delta},
            "participation": {"size": n_rows},
            "pfds": {"n_holders": n_sharers, **said},
        }

    def _shown(self, X: Any, dataset: Dataset, holder: Any) -> SharedDataset:
        columns = dataset.decoded(self.schema_)
        columns.popitem()
        return SharedDataset(frame_like(X, columns), self._labels(dataset.labels), holder)

    def _labels(self, encoded: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Labels of released rows, in the type of y."""
        return encoded

    def _model_of(self, holder: Any) -> Any:
        """The model that predicts: that of the release, or that of a holder at home."""
        if holder is None:
            return self.model_
        if not hasattr(self, "_homes"):
            raise EstimatorError(
                "USAGE-001",
                "This estimator was copied or read from a file, and the holders' rows are not in it.",
                why="A home model contains its holder's own rows without any noise, and never leaves.",
                fix="Fit again where the rows are, or predict without holder.",
            )
        return self._homes.of(holder)

    def __getstate__(self) -> dict[str, Any]:
        # The rows stay where they are: a copy, or a file, knows the release only.
        return {name: value for name, value in super().__getstate__().items() if name != "_homes"}


def _names(holders: Any, whose: Ints) -> list[Any]:
    """What the holders are called, by their numbers."""
    first = np.unique(whose, return_index=True)[1]
    names = np.arange(len(first)) if holders is None else as_column("holders", holders)[first]
    return list(names.tolist())


def _taken(rows: Dataset, which: npt.NDArray[np.bool_]) -> Dataset:
    return Dataset({name: column[which] for name, column in rows.columns.items()}, rows.labels[which])


def _released(params: Params, rows: Dataset, whose: Ints, entropy: Entropy) -> tuple[tuple[Dataset, ...], tuple[Any, ...]]:
    """Datasets and predictors that holders of these rows share."""
    if params.variant == "paper":
        shared = simulate_paper(params, rows.columns, rows.labels, whose, entropy)
        return shared.datasets, shared.trees
    # In the place of the digest that all parties share, so that who answers what follows from random_state too.
    digest = entropy.bytes(_DIGEST_BYTES)
    model = simulate(params, Rows.of(params, rows.columns, rows.labels, whose), digest, entropy).model
    return (draw(model, params.size, entropy),), (model,)
