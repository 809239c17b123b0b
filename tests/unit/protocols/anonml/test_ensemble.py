"""Partition classifiers compared with scikit-learn on the counted rows."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import OneHotEncoder
from sklearn.tree import DecisionTreeClassifier

from shoal.data.metrics import score_fold
from shoal.entropy import SeededEntropy
from shoal.errors import UsageError
from shoal.mechanisms.calibrate import choose_mechanism
from shoal.mechanisms.randomized_response import RandomizedResponse
from shoal.mechanisms.unary_encoding import PQPerturbation
from shoal.protocols.anonml.ensemble import SubsetTable, sample_rows, train

SHAPES = [((2,), 2), ((3,), 2), ((2, 2, 2), 2), ((2, 3), 2), ((4, 2, 3), 2), ((2,), 3), ((3, 2), 4)]
SCORES = ("f1", "auc", "accuracy")


def random_counts(rng, n_bins, n_labels, n=400):
    """Counts of n rows, and at least three of each label."""
    n_cells = int(np.prod(n_bins)) * n_labels
    counts = rng.multinomial(n, rng.dirichlet(np.ones(n_cells)))
    counts[:n_labels] += 3
    return counts


def as_rows(counts, n_bins, n_labels):
    """The bins and the label of every row, by the definition of a cell."""
    cells = np.repeat(np.arange(counts.size), counts)
    return np.stack(np.unravel_index(cells // n_labels, n_bins), axis=1), cells % n_labels


def all_bins(n_bins):
    return np.stack(np.unravel_index(np.arange(int(np.prod(n_bins))), n_bins), axis=1)


def encoder(n_bins):
    return OneHotEncoder(categories=[range(size) for size in n_bins], drop="if_binary").fit(
        all_bins(n_bins)
    )


def learn(counts, n_bins, n_labels, kind="logistic", score="f1", seed=1, mechanism=None):
    counts = np.asarray(counts)
    n = int(counts.sum())
    table = SubsetTable(tuple(range(len(n_bins))), n_bins, n_labels, counts, n, mechanism)
    return train(table, kind, score, SeededEntropy(seed))


@pytest.fixture
def rng():
    return np.random.default_rng(3)


@pytest.mark.parametrize(("n_bins", "n_labels"), SHAPES)
def test_logistic_regression_equals_scikit_learn(rng, n_bins, n_labels):
    counts = random_counts(rng, n_bins, n_labels)
    bins, labels = as_rows(counts, n_bins, n_labels)
    model = LogisticRegression(class_weight="balanced", tol=1e-10, max_iter=10_000)
    model = (model if n_labels == 2 else OneVsRestClassifier(model)).fit(
        encoder(n_bins).transform(bins).toarray(), labels
    )
    expected = model.predict_proba(encoder(n_bins).transform(all_bins(n_bins)).toarray())
    np.testing.assert_allclose(learn(counts, n_bins, n_labels).probabilities, expected, atol=1e-6)


def test_logistic_regression_converges_when_full_steps_overshoot():
    """Large counts and cells of one class only: undamped Newton steps end in a singular matrix
    here.
    """
    counts = [
        0,
        0,
        675641,
        496,
        39388,
        0,
        41,
        254766,
        0,
        0,
        114,
        2441008,
        352069,
        0,
        0,
        106912,
        0,
        985563,
        0,
        714,
        298537,
        195,
        4286,
        6,
    ]
    table, design = (
        np.reshape(counts, (12, 2)),
        encoder((3, 4)).transform(all_bins((3, 4))).toarray(),
    )
    weights = table * (table.sum() / (2 * table.sum(axis=0)))
    model = LogisticRegression(solver="newton-cholesky", tol=1e-9).fit(
        np.tile(design, (2, 1)), np.repeat([0, 1], 12), weights.T.ravel()
    )
    np.testing.assert_allclose(
        learn(counts, (3, 4), 2).probabilities, model.predict_proba(design), rtol=1e-6, atol=1e-14
    )


@pytest.mark.parametrize(("n_bins", "n_labels"), SHAPES)
def test_tree_equals_scikit_learn(rng, n_bins, n_labels):
    counts = random_counts(rng, n_bins, n_labels)
    bins, labels = as_rows(counts, n_bins, n_labels)
    model = DecisionTreeClassifier(class_weight="balanced", random_state=0).fit(bins, labels)
    np.testing.assert_allclose(
        learn(counts, n_bins, n_labels, "tree").probabilities,
        model.predict_proba(all_bins(n_bins)),
        atol=1e-9,
    )


def test_tree_without_scikit_learn_raises_usage_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UsageError, match=r"(?s)USAGE-002.*pip install -e '.*\[learn\]'"):
        learn([30, 10, 10, 30], (2,), 2, "tree")
    assert learn([30, 10, 10, 30], (2,), 2, "logistic") is not None


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("n_bins", "n_labels"), SHAPES)
def test_scores_equal_scikit_learn(rng, n_bins, n_labels, score):
    counts = random_counts(rng, n_bins, n_labels)
    probabilities = rng.dirichlet(np.ones(n_labels), int(np.prod(n_bins)))
    probabilities[0] = probabilities[-1]
    bins, labels = as_rows(counts, n_bins, n_labels)
    of_row = probabilities[np.ravel_multi_index(tuple(bins.T), n_bins)]
    guessed = of_row.argmax(axis=1)
    expected = {
        "accuracy": accuracy_score(labels, guessed),
        "f1": f1_score(
            labels,
            guessed,
            labels=range(n_labels),
            average="binary" if n_labels == 2 else "macro",
            zero_division=0,
        ),
        "auc": roc_auc_score(labels, of_row[:, 1] if n_labels == 2 else of_row, multi_class="ovr"),
    }
    assert score_fold(probabilities, counts.reshape(-1, n_labels), score) == pytest.approx(
        expected[score]
    )


@pytest.mark.untraced
@pytest.mark.parametrize(
    ("score", "name"), [("f1", "f1"), ("auc", "roc_auc"), ("accuracy", "accuracy")]
)
def test_weight_is_mean_over_three_folds(rng, score, name):
    """Both deal rows to folds at random, so that means over many deals are compared."""
    counts = np.array([40, 9, 30, 12, 11, 14, 6, 28])
    ours = np.mean([learn(counts, (2, 2), 2, score=score, seed=seed).weight for seed in range(12)])
    bins, labels = as_rows(counts, (2, 2), 2)
    model = LogisticRegression(class_weight="balanced")
    theirs = [
        cross_val_score(
            model, bins, labels, scoring=name, cv=StratifiedKFold(3, shuffle=True, random_state=i)
        )
        for i in range(12)
    ]
    assert ours == pytest.approx(np.mean(theirs), abs=0.015)


@pytest.mark.parametrize("kind", ["logistic", "tree"])
@pytest.mark.parametrize("score", SCORES)
def test_weight_is_one_if_separable_and_small_if_uninformative(kind, score):
    assert learn([500, 0, 0, 500], (2,), 2, kind, score).weight == 1.0
    nothing = np.mean(
        [learn([500, 500, 500, 500], (2,), 2, kind, score, seed).weight for seed in range(10)]
    )
    assert nothing == pytest.approx(0.5, abs=0.1)


def test_weight_scores_held_out_rows():
    """On random labels a tree remembers its rows: scored on them it would be far better than
    chance.
    """
    rng = np.random.default_rng(8)
    weights = [
        learn(
            rng.multinomial(120, np.full(64, 1 / 64)), (4, 4, 2), 2, "tree", "accuracy", seed
        ).weight
        for seed in range(30)
    ]
    assert np.mean(weights) == pytest.approx(0.5, abs=0.05)


def test_train_repeats_with_same_entropy():
    mechanism = RandomizedResponse(1.0, 4)
    counts = np.array([300, 200, 250, 250])
    one, same, other = (
        learn(counts, (2,), 2, seed=seed, mechanism=mechanism) for seed in (1, 1, 2)
    )
    assert one.weight == same.weight
    assert one.probabilities.tolist() == same.probabilities.tolist() != other.probabilities.tolist()


def test_train_returns_features_and_bins_of_table():
    table = SubsetTable((7,), (3,), 2, np.array([5, 0, 0, 5, 5, 5]), 20, None)
    learned = train(table, "logistic", "f1", SeededEntropy(1))
    assert (learned.features, learned.n_bins, learned.probabilities.shape) == ((7,), (3,), (3, 2))


@pytest.mark.parametrize(
    "mechanism", [RandomizedResponse(2.0, 8), PQPerturbation(2.0, 8), choose_mechanism(0.5, 8, 1)]
)
def test_train_recovers_classifier_from_noisy_counts(mechanism, entropy):
    counts = np.array([60, 10, 40, 20, 30, 30, 5, 40]) * 1000
    reports = mechanism.report_many(np.repeat(np.arange(8), counts), entropy)
    tally = mechanism.tally(reports)
    table = SubsetTable((0, 1), (2, 2), 2, tally, int(counts.sum()), mechanism)
    noisy = train(table, "logistic", "f1", entropy)
    exact = learn(counts, (2, 2), 2)
    np.testing.assert_allclose(noisy.probabilities, exact.probabilities, atol=0.05)
    assert noisy.weight == pytest.approx(exact.weight, abs=0.05)


def test_sample_rows_follows_estimated_type(entropy):
    """80,000 rows; a share of a half has a standard deviation of 141 of them, and an empty or a
    negative cell is never drawn.
    """
    rows = sample_rows(
        np.array([0.0, 80_000.0, -20_000.0, 60_001.0, 19_999.0, -0.5]), 80_000, entropy
    )
    drawn = np.bincount(rows, minlength=6)
    assert drawn[[0, 2, 5]].tolist() == [0, 0, 0]
    assert np.abs(drawn[[1, 3, 4]] - [40_000, 30_000.5, 9_999.5]).max() < 6 * 141
    assert drawn[1] != 40_000


def test_sample_rows_of_nonpositive_counts_is_empty(entropy):
    assert sample_rows(np.array([-1.0, 0.0, -5.0]), 10, entropy).size == 0
    silent = PQPerturbation(1.0, 4)
    table = SubsetTable((0,), (2,), 2, np.zeros(4, np.int64), 10, silent)
    assert train(table, "logistic", "f1", entropy) is None


class Drawn:
    """A source of chosen uniform integers: those on an edge are too rare to wait for."""

    def __init__(self, *values):
        self.values = values

    def below_many(self, bound, n):
        assert (bound, n) == (2**31, len(self.values))
        return np.array(self.values)


def test_sample_rows_maps_each_integer_to_one_cell():
    half = 2**30
    assert sample_rows(
        np.array([0.0, 2.0, 0.0, 2.0]), 4, Drawn(0, half - 1, half, 2 * half - 1)
    ).tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize("seed", range(20))
def test_every_fold_has_row_of_every_class(seed):
    """With three rows of class 1, all in the bin that identifies it, each fold finds its own."""
    assert learn([30, 0, 0, 3], (2,), 2, "tree", "f1", seed).weight == 1.0


def test_train_returns_none_if_one_class_remains():
    """Three rows of each class are needed, one for each fold."""
    assert learn([30, 1, 30, 1], (2,), 2) is None
    assert learn([30, 3, 30, 0], (2,), 2) is not None
    mechanism = RandomizedResponse(1.0, 4)
    counts = np.rint([1000 * float(mechanism.p), *([1000 * float(mechanism.q)] * 3)]).astype(
        np.int64
    )
    assert learn(counts, (2,), 2, mechanism=mechanism) is None


@pytest.mark.parametrize("mechanism", [None, RandomizedResponse(1.0, 4)])
def test_train_of_no_answers_returns_none(mechanism):
    assert learn([0, 0, 0, 0], (2,), 2, mechanism=mechanism) is None


@pytest.mark.parametrize("kind", ["logistic", "tree"])
def test_train_leaves_out_class_with_too_few_rows(kind):
    learned = learn([300, 100, 2, 100, 300, 0], (2,), 3, kind)
    alone = learn([300, 100, 100, 300], (2,), 2, kind)
    np.testing.assert_allclose(
        learned.probabilities, np.hstack([alone.probabilities, np.zeros((2, 1))]), atol=1e-9
    )
    assert learn([300, 2, 1, 300, 0, 1], (2,), 3, kind) is None


def test_train_scores_left_out_class_as_never_found():
    counts = [300, 0, 0, 0, 300, 0]
    assert [learn(counts, (2,), 3, score=score).weight for score in SCORES] == pytest.approx(
        [2 / 3, 2.5 / 3, 1.0]
    )
