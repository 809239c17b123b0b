"""Figure 4 and section VIII-D of the AnonML paper.

The ensemble is compared with others, and its parts with each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import (
    BaggingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_score
from sklearn.tree import DecisionTreeClassifier

from benchmarks.paper.anonml.data import Example, for_paper, in_bins
from benchmarks.paper.anonml.trials import trials
from benchmarks.paper.figure import PALETTE, RAMP, Figure, Line, Panel
from shoal.data.schema import Categorical, Schema
from shoal.protocols.anonml.params import AnonMLPaperParams

N_PARTITIONS = 5
SUBSET_SIZE = 3
Floats = npt.NDArray[np.float64]
KINDS = ("logistic", "tree")
SCORES = ("f1", "auc", "accuracy")
MANY_VALUES = 20
FEW_TRIALS = 5
"""Trials of slow runs that vary little."""

_MIN_LEAF = 20

_LOGISTIC = partial(LogisticRegression, max_iter=2000)
_TREE = partial(DecisionTreeClassifier, min_samples_leaf=_MIN_LEAF, random_state=0)


def figure(name: str, trials: int) -> Figure:
    """Return the figure with that name, with ``trials`` trials for each point."""
    return _against_others(trials) if name == "anonml-4" else _parts(trials)


def _against_others(n: int) -> Figure:
    """Return Figure 4: no perturbation; unchanged features, and features cut at the median."""
    others: dict[str, Any] = {
        "logistic regression": _LOGISTIC(),
        "decision tree": _TREE(),
        "bagged trees": BaggingClassifier(_TREE(), n_estimators=30, random_state=0),
        "random subspace": BaggingClassifier(
            _TREE(), n_estimators=30, max_features=0.5, bootstrap=False, random_state=0
        ),
        "random forest": RandomForestClassifier(100, min_samples_leaf=5, random_state=0),
        "gradient boosting": HistGradientBoostingClassifier(random_state=0),
    }
    names = [f"AnonML, {kind}" for kind in KINDS] + list(others)
    panels = []
    for title, study in (("Adult", "adult-paper"), ("OULAD", "oulad")):
        raw = for_paper(study)
        binned = in_bins(raw)
        as_is = [
            float(np.mean([_vote_on_raw(raw, kind, seed) for seed in range(min(n, FEW_TRIALS))]))
            for kind in KINDS
        ]
        as_is += [_auc(raw, one) for one in others.values()]
        in_two = [trials(binned, _without_noise(binned, kind), n).value for kind in KINDS] + [
            _auc(binned, one) for one in others.values()
        ]
        lines = [
            Line("unchanged features", range(len(names)), as_is, "dashed", PALETTE["blue"]),
            Line("two bins each", range(len(names)), in_two, "dashed", PALETTE["vermilion"]),
        ]
        panels.append(Panel(f"Figure 4: {title}, no perturbation", "", "test AUC", lines, names))
    return Figure("anonml-4", panels)


def _auc(given: Example, classifier: Any) -> float:
    """Return the test AUC of a scikit-learn classifier that has seen every row."""
    parts, split = _inputs(given), given.split
    classifier.fit(np.hstack([part[0] for part in parts]), split.train_labels)
    return float(
        roc_auc_score(
            split.test_labels,
            classifier.predict_proba(np.hstack([part[1] for part in parts]))[:, 1],
        )
    )


def _inputs(given: Example) -> list[tuple[Floats, Floats]]:
    """Return each feature for people and for test rows.

    Categories are one-hot encoded. Numbers are standardised (zero if missing), with a column that
    marks missing values.
    """
    parts = []
    for feature in given.schema.features:
        asked, unseen = (
            given.split.train_columns[feature.name],
            given.split.test_columns[feature.name],
        )
        if isinstance(feature, Categorical):
            values = np.arange(len(feature.values))
            parts.append(((asked[:, None] == values) * 1.0, (unseen[:, None] == values) * 1.0))
        else:
            scaled = [(column - np.nanmean(asked)) / np.nanstd(asked) for column in (asked, unseen)]
            with_gaps = [
                np.stack([np.nan_to_num(column), np.isnan(column)], axis=1) for column in scaled
            ]
            parts.append((with_gaps[0], with_gaps[1]))
    return parts


def _without_noise(given: Example, kind: str) -> AnonMLPaperParams:
    """Return five partitions and the largest number of subsets, without perturbation."""
    assert isinstance(given.params, AnonMLPaperParams)
    n_subsets = given.params.n_features // SUBSET_SIZE
    settings: dict[str, Any] = {
        "n_partitions": N_PARTITIONS,
        "subset_size": SUBSET_SIZE,
        "n_subsets": n_subsets,
        "classifier": kind,
    }
    return replace(given.params, epsilon=math.inf, **settings)


def _vote_on_raw(given: Example, kind: str, seed: int) -> float:
    """Return the test AUC of the paper's ensemble on features without bins.

    It has no private form; the vote over subsets is the same.
    """
    rng = np.random.default_rng(seed)
    parts, split = _inputs(given), given.split
    votes = np.zeros(len(split.test_labels))
    for people in np.array_split(rng.permutation(len(split.train_labels)), N_PARTITIONS):
        for subset in _deal(rng.permutation(len(parts))):
            classifier = (_LOGISTIC if kind == "logistic" else _TREE)(class_weight="balanced")
            train, labels = (
                np.hstack([parts[j][0][people] for j in subset]),
                split.train_labels[people],
            )
            weight = cross_val_score(classifier, train, labels, cv=3, scoring="f1").mean()
            votes += (
                weight
                * classifier.fit(train, labels).predict_proba(
                    np.hstack([parts[j][1] for j in subset])
                )[:, 1]
            )
    return float(roc_auc_score(split.test_labels, votes))


def _deal(order: npt.NDArray[np.int64]) -> Iterator[list[int]]:
    for start in range(0, len(order) - SUBSET_SIZE + 1, SUBSET_SIZE):
        yield order[start : start + SUBSET_SIZE].tolist()


def _parts(n: int) -> Figure:
    """Return section VIII-D: partition classifiers and scores, with few and with many cells."""
    panels = []
    few, declared = for_paper("adult-paper"), for_paper("adult-declared")
    ungrouped = [
        replace(feature, groups=None)
        if isinstance(feature, Categorical) and len(feature.values) < MANY_VALUES
        else feature
        for feature in declared.schema.features
    ]
    many = replace(
        declared, params=replace(declared.params, schema=Schema(ungrouped, declared.schema.label))
    )
    names = [f"{kind}, {score}" for kind in KINDS for score in SCORES]
    for title, given in (("two bins each", few), ("up to 15 bins", many)):
        lines = []
        for epsilon, colour in zip((1.0, 4.0, math.inf), RAMP[::2], strict=True):
            shown = (
                f"epsilon {epsilon:g} by equation 6"
                if math.isfinite(epsilon)
                else "no perturbation"
            )
            settings = [(kind, score) for kind in KINDS for score in SCORES]
            found = [
                trials(given, _with(given, epsilon, kind, score), n).value
                for kind, score in settings
            ]
            lines.append(
                Line(
                    shown,
                    range(len(names)),
                    found,
                    "solid" if math.isfinite(epsilon) else "dashed",
                    colour,
                )
            )
        panels.append(Panel(f"Section VIII-D: Adult, {title}", "", "test AUC", lines, names))
    return Figure("anonml-scores", panels)


def _with(given: Example, epsilon: float, kind: str, score: str) -> AnonMLPaperParams:
    assert isinstance(given.params, AnonMLPaperParams)
    settings: dict[str, Any] = {"accounting": "paper", "classifier": kind, "score": score}
    return replace(
        given.params,
        epsilon=epsilon,
        n_partitions=N_PARTITIONS,
        subset_size=SUBSET_SIZE,
        n_subsets=2,
        **settings,
    )
