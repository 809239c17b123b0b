"""Tables, splits and competitors of the PFDS benchmarks: owners of rows, and noise."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from benchmarks.paper.pfds import baselines as pfds_baselines
from benchmarks.paper.pfds import data as pfds_data
from benchmarks.paper.pfds import diffgen as pfds_diffgen
from benchmarks.paper.pfds.baselines import Kind, Linear
from benchmarks.paper.pfds.data import Rows, Split
from benchmarks.paper.pfds.diffgen import Group, Range
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.mechanisms.exponential import ExponentialMechanism

SCHEMA = Schema(
    [Numeric("age", 0, 80, missing=False), Categorical("sex", ["Female", "Male"], missing=False)],
    label=Categorical("ill", ["no", "yes"]),
)


def make_people(n: int, seed: int = 0, *, number: bool = False) -> Rows:
    """Return people whose label follows from both features, plus noise."""
    rng = np.random.default_rng(seed)
    columns = {"age": rng.integers(0, 81, n).astype(np.float64), "sex": rng.integers(0, 2, n)}
    score = columns["age"] / 80 + columns["sex"] - 1 + rng.normal(size=n) / 10
    schema = Schema(SCHEMA.features, Numeric("score", -2, 2)) if number else SCHEMA
    return Rows(
        schema,
        columns,
        np.clip(score, -2, 2) if number else (score > 0).astype(np.int64),
        columns["age"] / 80,
    )


def make_split(n: int = 600, *, number: bool = False) -> Split:
    """Return a split with four holders; the last one has no rows."""
    training = make_people(n, number=number)
    return Split(training, make_people(300, 1, number=number), np.arange(n) % 3, 4)


def encode_rows(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    return pfds_baselines.design(rows.schema, rows.columns), pfds_baselines.targets(
        rows.schema, rows.labels
    )


@pytest.fixture
def numbered(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Return rows labelled by their number, which replace a table."""
    whole = Rows(
        SCHEMA,
        {"age": np.arange(1000.0), "sex": np.zeros(1000, np.int64)},
        np.arange(1000),
        np.linspace(0, 1, 1000),
    )
    monkeypatch.setattr(pfds_data, "rows", lambda name: whole)
    return whole


def test_test_rows_come_from_the_reporting_half(numbered: Rows) -> None:
    order = np.random.default_rng(12345).permutation(1000)
    first, second = set(order[:500].tolist()), set(order[500:].tolist())
    found = list(pfds_data.splits("adult", 3, seed=4))
    for one in found:
        test, training = set(one.test.labels.tolist()), set(one.training.labels.tolist())
        assert len(test) == 100 and test <= second and training == set(range(1000)) - test
        assert len(one.owners) == 900 and one.n_holders == 100 and one.owners.max() < 100
        assert np.array_equal(one.training.key, numbered.key[one.training.labels])
    assert len({tuple(one.test.labels) for one in found}) == 3
    again = next(pfds_data.splits("adult", 1, seed=5))
    assert np.array_equal(again.test.labels, found[1].test.labels) and np.array_equal(
        again.owners, found[1].owners
    )
    for one in pfds_data.splits("adult", 2, development=True):
        test, training = set(one.test.labels.tolist()), set(one.training.labels.tolist())
        assert (
            len(test) == 50
            and test | training == first
            and not test & training
            and one.n_holders == 50
        )
    assert next(pfds_data.splits("retinopathy", 1, development=True)).n_holders == 5


def test_partition_assigns_rows_by_inverse_distance() -> None:
    key = np.full(40_000, 0.3)
    points = np.random.default_rng(6).random(5)
    nearness = 1 / np.abs(points - 0.3)
    shares = (
        np.bincount(pfds_data.partition(key, 5, np.random.default_rng(6)), minlength=5) / 40_000
    )
    assert shares == pytest.approx(nearness / nearness.sum(), abs=0.01)
    assert set(pfds_data.partition(np.full(1000, points[2]), 5, np.random.default_rng(6))) == {2}


def test_select_holder_returns_its_rows() -> None:
    one = make_split(9)
    assert (
        np.array_equal(one.select_holder(1).labels, one.training.labels[[1, 4, 7]])
        and len(one.select_holder(3)) == 0
    )


def test_news_is_read_as_classes_or_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    features = pfds_data.task("news").schema.features
    cells = [str(feature.low) if isinstance(feature, Numeric) else "0" for feature in features]
    head = [feature.name for feature in features]
    table = "\n".join(
        ",".join(line)
        for line in ([*head, "shares"], [*cells, "1400"], [*cells, "1401"], [*cells, "1000"])
    )
    (tmp_path / "online_news_sample.csv.gz").write_bytes(gzip.compress(table.encode()))
    monkeypatch.setattr(pfds_data, "DATA", tmp_path)
    as_class, as_number = (
        pfds_data.rows.__wrapped__("news"),
        pfds_data.rows.__wrapped__("news_number"),
    )
    assert as_class.labels.tolist() == [0, 1, 0] and as_number.labels[2] == 3
    assert as_class.key.tolist() == [0, 0, 0] and len(as_class.schema.names) == 58
    assert pfds_data.task("news_number").is_number and not pfds_data.task("news").is_number


def test_missing_table_is_skipped_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(pfds_data, "DATA", tmp_path)
    assert (
        not pfds_data.is_there(pfds_data.task("bike"))
        and "bike_sharing_hour.csv.gz is not in" in capsys.readouterr().err
    )


@pytest.mark.parametrize("name", [name for name in pfds_data.TASKS if name != "news_number"])
def test_rows_of_each_table_fit_its_schema(name: str) -> None:
    task = pfds_data.task(name)
    if not pfds_data.is_there(task):
        pytest.skip(f"{task.file} is not on this machine")
    rows = pfds_data.rows(name)
    coded = pfds_baselines.design(task.schema, rows.columns)
    assert (
        coded.min() >= 0 and coded.max() <= 1 and coded.sum(axis=1).max() <= len(task.schema.names)
    )
    assert rows.key.min() >= 0 and rows.key.max() <= 1 and np.unique(rows.key).size > 10
    expected = {"adult": 14, "bank": 16, "bike": 12, "news": 58, "retinopathy": 19, "phishing": 30}
    assert len(task.schema.names) == expected[name] and task.n_holders == (
        10 if name == "retinopathy" else 100
    )


def test_design_scales_numbers_and_encodes_categories() -> None:
    columns = {"age": np.array([0.0, 20.0, 80.0]), "sex": np.array([1, 0, 0])}
    assert pfds_baselines.design(SCHEMA, columns).tolist() == [[0, 0, 1], [0.25, 1, 0], [1, 1, 0]]
    assert pfds_baselines.targets(SCHEMA, np.array([0, 1])).tolist() == [0, 1]
    assert pfds_baselines.targets(
        Schema(SCHEMA.features, Numeric("score", 0, 10)), np.array([0.0, 5.0, 10.0])
    ).tolist() == [-1, 0, 1]


@pytest.mark.parametrize("kind", ["logistic", "svm"])
def test_own_and_pooled_models_learn_classes(kind: Kind) -> None:
    given = make_split()
    found = pfds_baselines.own_and_pooled(kind, given)
    share = given.test.labels.mean()
    assert found.trivial == pytest.approx(min(share, 1 - share)) and len(found.own) == 3
    assert found.pooled < 0.12 < found.trivial and all(
        found.pooled - 0.05 < own < 0.2 for own in found.own
    )
    assert pfds_baselines.own_and_pooled(kind, given, [1, 3]).own == found.own[1:2]
    x, _ = encode_rows(given.test)
    for only in (0.0, 1.0):
        assert set(pfds_baselines.erm(kind, x, np.full(len(x), only)).predict(x)) == {only}


@pytest.mark.parametrize("kind", ["linear", "ridge"])
def test_own_and_pooled_models_learn_numbers(kind: Kind) -> None:
    found = pfds_baselines.own_and_pooled(kind, make_split(number=True))
    _, truth = encode_rows(make_people(300, 1, number=True))
    assert found.trivial == pytest.approx(truth.var(), rel=0.05) and found.pooled == pytest.approx(
        0.05**2, rel=0.3
    )
    assert Linear(np.array([4.0]), 0.0, is_number=True).predict(
        np.array([[1.0], [-1.0], [0.1]])
    ).tolist() == [1, -1, 0.4]


def test_together_takes_the_majority_or_the_mean() -> None:
    x = np.zeros((1, 1))
    said = [Linear(np.zeros(1), score, is_number=False) for score in (5.0, 5.0, -1.0, -1.0)]
    assert pfds_baselines.together(said, x).tolist() == [0] and pfds_baselines.together(
        said[:3], x
    ).tolist() == [1]
    assert pfds_baselines.together(
        [Linear(np.zeros(1), score, is_number=True) for score in (5.0, -0.5)], x
    ).tolist() == [0.25]


def test_objective_without_noise_equals_scikit_learn() -> None:
    x, y = encode_rows(make_people(200))
    rows, signs = np.column_stack([x, np.ones(200)]) / math.sqrt(3), 2 * y - 1
    found = pfds_baselines.objective_perturbation(
        "logistic", rows, signs, math.inf, np.random.default_rng(0), 0.01
    )
    known = LogisticRegression(
        C=1 / (200 * 0.01), fit_intercept=False, tol=1e-10, max_iter=10_000
    ).fit(rows, y)
    assert found == pytest.approx(known.coef_.ravel(), abs=1e-4)
    nearly = pfds_baselines.objective_perturbation(
        "logistic", rows, signs, 1e9, np.random.default_rng(0), 0.01
    )
    assert nearly == pytest.approx(found, abs=1e-5)


def test_smooth_svm_without_noise_is_at_its_minimum() -> None:
    x, y = encode_rows(make_people(200))
    rows, signs = np.column_stack([x, np.ones(200)]) / math.sqrt(3), 2 * y - 1

    def plain(w: np.ndarray) -> float:
        h, losses = pfds_baselines.HUBER, []
        for margin in (rows @ w) * signs:
            losses.append(
                0.0
                if margin > 1 + h
                else 1 - margin
                if margin < 1 - h
                else (1 + h - margin) ** 2 / (4 * h)
            )
        return float(np.mean(losses)) + 0.01 / 2 * float(w @ w)

    found = pfds_baselines.objective_perturbation(
        "svm", rows, signs, math.inf, np.random.default_rng(0), 0.01
    )
    for step in np.vstack([np.eye(4), -np.eye(4)]) * 1e-3:
        assert plain(found + step) > plain(found)


def test_loss_has_bounded_slope_and_curvature() -> None:
    margins = np.linspace(-4, 4, 8001)
    for kind, c in (("logistic", 0.25), ("svm", 1.0)):
        _, slope = pfds_baselines._loss(kind, margins)
        assert np.abs(slope).max() <= 1 and np.diff(slope).max() / 1e-3 == pytest.approx(
            c, rel=1e-3
        )
        left, more = pfds_baselines.spent(kind, 50, 1.0, 0.3)
        assert more == 0 and left == pytest.approx(1 - math.log(1 + 2 * c / 15 + c**2 / 15**2))
        left, more = pfds_baselines.spent(kind, 50, 0.1, 0.03)
        assert (
            more > 0
            and left == 0.05
            and 2 * math.log(1 + c / (50 * (0.03 + more))) == pytest.approx(0.05)
        )


def matches_gamma(lengths: np.ndarray, d: int, scale: float) -> bool:
    """Return whether mean and variance are those of a Gamma variable, to 10 % and 20 %."""
    return (
        abs(lengths.mean() / (d * scale) - 1) < 0.1
        and abs(lengths.var() / (d * scale**2) - 1) < 0.2
    )


@pytest.mark.parametrize(("epsilon", "penalty"), [(1.0, 0.3), (0.1, 0.03)])
def test_objective_perturbation_has_the_noise_of_epsilon(epsilon: float, penalty: float) -> None:
    # Rows of zeros leave only the noise: its negative, divided by the whole penalty.
    rng, n, d = np.random.default_rng(2), 50, 6
    drawn = [
        pfds_baselines.objective_perturbation(
            "logistic", np.zeros((n, d)), np.ones(n), epsilon, rng, penalty
        )
        for _ in range(1000)
    ]
    left, more = pfds_baselines.spent("logistic", n, epsilon, penalty)
    noise = np.array(drawn) * n * (penalty + more)
    lengths = np.linalg.norm(noise, axis=1)
    assert matches_gamma(lengths, d, 2 / left) and not matches_gamma(lengths / 2, d, 2 / left)
    assert np.abs((noise / lengths[:, np.newaxis]).mean(axis=0)).max() < 5 / math.sqrt(1000 * d)


def test_functional_mechanism_without_noise_is_least_squares() -> None:
    x, y = encode_rows(make_people(200, number=True))
    rows = np.column_stack([x, np.ones(200)])
    found = pfds_baselines.functional_mechanism(rows, y, 3, math.inf, np.random.default_rng(0))
    assert found == pytest.approx(np.linalg.lstsq(rows, y, rcond=None)[0], abs=1e-8)
    model = pfds_baselines.private("linear", x, y, 2, math.inf, np.random.default_rng(0))
    assert model.predict(x) == pytest.approx(
        pfds_baselines.erm("linear", x, y).predict(x), abs=1e-8
    )


def test_noisy_quadratic_covers_the_sensitivity_of_a_row() -> None:
    rng, most = np.random.default_rng(3), 0.0
    x, _ = encode_rows(make_people(50))
    rows, bound = np.column_stack([x, np.ones(50)]), 3
    silent = np.random.default_rng(0)
    for row in [*rows, np.array([1.0, 1.0, 0.0, 1.0])]:
        y = np.array([rng.choice([-1.0, 1.0])])
        q, v, _ = pfds_baselines.noisy_quadratic(row[np.newaxis], y, bound, math.inf, silent)
        most = max(most, 1 + 2 * np.abs(v).sum() + np.abs(q).sum())
    *_, deviation = pfds_baselines.noisy_quadratic(rows, np.zeros(50), bound, 0.5, silent)
    assert most == pytest.approx((1 + bound) ** 2) and deviation == pytest.approx(
        math.sqrt(2) * 2 * most / 0.5
    )


def test_noisy_quadratic_has_the_noise_of_epsilon() -> None:
    rng, d = np.random.default_rng(4), 80
    q, v, deviation = pfds_baselines.noisy_quadratic(np.zeros((1, d)), np.zeros(1), 3, 0.5, rng)
    assert np.array_equal(q, q.T) and deviation == pytest.approx(math.sqrt(2) * 64)
    assert q[np.triu_indices(d, 1)].std() == pytest.approx(deviation / 2, rel=0.1)
    assert np.diag(q).std() == pytest.approx(deviation, rel=0.35) and v.std() == pytest.approx(
        deviation / 2, rel=0.35
    )
    assert np.diag(q / 2).std() != pytest.approx(deviation, rel=0.35) != (v / 2).std()


def test_functional_mechanism_omits_directions_without_minimum() -> None:
    rows, y = np.zeros((5, 60)), np.zeros(5)
    q, v, deviation = pfds_baselines.noisy_quadratic(rows, y, 3, 1.0, np.random.default_rng(5))
    values, vectors = np.linalg.eigh(q + 4 * deviation * np.eye(60))
    found = pfds_baselines.functional_mechanism(rows, y, 3, 1.0, np.random.default_rng(5))
    along = found @ vectors
    assert (values < 0).any() and np.abs(along[values < 0]).max() < 1e-9
    assert along[values > 0] * values[values > 0] == pytest.approx((v @ vectors)[values > 0])


def test_private_scales_rows_to_length_one(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, longest = pfds_baselines.objective_perturbation, []

    def noted(kind: Kind, rows: np.ndarray, *rest: object) -> np.ndarray:
        longest.append(np.linalg.norm(rows, axis=1).max())
        return honest(kind, rows, *rest)

    monkeypatch.setattr(pfds_baselines, "objective_perturbation", noted)
    x = np.array([[1.0, 1.0, 0.0], [0.5, 0.0, 1.0]])
    model = pfds_baselines.private(
        "logistic", x, np.array([0.0, 1.0]), 2, 1.0, np.random.default_rng(9)
    )
    assert longest == [pytest.approx(1)]
    rows = np.column_stack([x, np.ones(2)]) / math.sqrt(3)
    weights = honest("logistic", rows, np.array([-1.0, 1.0]), 1.0, np.random.default_rng(9))
    assert x @ model.weights + model.intercept == pytest.approx(rows @ weights)


@pytest.mark.parametrize(
    ("kind", "number"), [("logistic", False), ("svm", False), ("linear", True)]
)
def test_dp_pred_combines_private_predictors(kind: Kind, number: bool) -> None:
    given = make_split(number=number)
    yardsticks = pfds_baselines.own_and_pooled(kind, given)
    rng = np.random.default_rng(7)
    without_noise = pfds_baselines.dp_pred(kind, given, math.inf, rng, penalty=1e-4)
    assert without_noise < yardsticks.pooled + 0.02
    x, y = encode_rows(given.training)
    unseen, truth = encode_rows(given.test)
    models = [
        pfds_baselines.private(kind, x[i::3], y[i::3], 2, 1.0, np.random.default_rng(8))
        for i in (2,)
    ]
    one = pfds_baselines.dp_pred(kind, given, 1.0, np.random.default_rng(8), sharers=[2, 3])
    assert one == pfds_baselines.error(truth, pfds_baselines.together(models, unseen))
    noisy = np.mean([pfds_baselines.dp_pred(kind, given, 0.001, rng) for _ in range(20)])
    assert noisy > without_noise + 0.05


def test_taxonomy_contains_every_value_of_adult_once() -> None:
    schema = pfds_data.task("adult").schema
    for feature in schema.features:
        if isinstance(feature, Categorical):
            top = pfds_diffgen.make_group(pfds_diffgen.TAXONOMY[feature.name], feature.values)
            assert sorted(top.members) == list(range(len(feature.values)))
            check_parts(top)
    assert set(pfds_diffgen.TAXONOMY) == {
        feature.name for feature in schema.features if isinstance(feature, Categorical)
    }


def check_parts(group: Group) -> None:
    """Check that each value is in one part, down to single values."""
    assert (len(group.members) == 1) == (not group.parts) and len(group.parts) != 1
    assert not group.parts or sorted(
        code for part in group.parts for code in part.members
    ) == sorted(group.members)
    for part in group.parts:
        check_parts(part)


def test_range_is_cut_at_whole_numbers() -> None:
    assert (
        Range(3, 6).cuts.tolist() == [4, 5, 6]
        and Range(3, 3).cuts.size == 0
        and Range(3, 3).parts == ()
    )
    wide = Range(0, 100_000).cuts
    assert wide.size == pfds_diffgen.MAX_CUTS and (wide[0], wide[-1]) == (100, 100_000)
    assert Range(3, 6, 5).parts == (Range(3, 4), Range(5, 6)) and Range(3, 6, 5).find_parts(
        np.array([4.0, 5.0])
    ).tolist() == [0, 1]
    assert set(Range(3, 6).draw(200, SeededEntropy(1))) == {3, 4, 5, 6}
    assert set(Group((2, 7)).draw(200, SeededEntropy(1))) == {2, 7}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Return the epsilon and the number of candidates of each choice."""
    made: list[tuple[float, int]] = []
    honest = ExponentialMechanism.choose

    def choose(self: ExponentialMechanism, scores: np.ndarray, entropy: SeededEntropy) -> int:
        made.append((self.epsilon, len(scores)))
        return honest(self, scores, entropy)

    monkeypatch.setattr(ExponentialMechanism, "choose", choose)
    return made


def test_diffgen_spends_half_of_epsilon_on_informative_splits(
    calls: list[tuple[float, int]],
) -> None:
    given = make_people(2000)
    made = pfds_diffgen.release(
        SCHEMA, given.columns, given.columns["sex"], 60.0, 1, SeededEntropy(1)
    )
    assert (
        len(made) == pytest.approx(2000, abs=3)
        and (made.labels == made.columns["sex"]).mean() > 0.99
    )
    # One cut of the number, and one choice between it and the category; the cuts of the second
    # step were not needed.
    assert (
        calls == [(10.0, 80), (10.0, 2)] and pfds_diffgen.query_share(60, 1, 1) * (1 + 2 * 1) == 30
    )
    calls.clear()
    made = pfds_diffgen.release(
        SCHEMA,
        given.columns,
        (given.columns["age"] >= 40).astype(np.int64),
        60.0,
        1,
        SeededEntropy(1),
    )
    first, _, younger, older = calls
    assert younger[1] + older[1] == first[1] - 1 == 79
    assert ((made.columns["age"] >= 40) == made.labels).mean() > 0.98
    assert abs(made.columns["age"][made.labels == 0].mean() - 19.5) < 1.5


def test_diffgen_cuts_a_part_by_its_own_rows() -> None:
    schema = Schema([Numeric("age", 0, 60)], label=SCHEMA.label)
    ages = np.repeat(np.arange(61.0), [10] * 60 + [20_000])
    labels = ((ages >= 20) & (ages < 60)).astype(np.int64)
    # The first cut is at 60; 20 is the best second cut only among the rows below 60.
    made = pfds_diffgen.release(schema, {"age": ages}, labels, 60.0, 2, SeededEntropy(2))
    assert set(made.columns["age"][made.labels == 1]) == set(range(20, 60))
    assert set(made.columns["age"][made.labels == 0]) == {*range(20), 60}


def test_diffgen_splits_down_to_single_values() -> None:
    schema = Schema([Numeric("age", 0, 2), SCHEMA.features[1]], label=SCHEMA.label)
    columns = {"age": np.array([0.0, 1.0, 2.0, 2.0] * 50), "sex": np.array([0, 1, 0, 1] * 50)}
    labels = np.array([0, 1, 1, 0] * 50)
    made = pfds_diffgen.release(schema, columns, labels, 64.0, 9, SeededEntropy(3))
    seen = np.unique(
        np.stack([made.columns["age"], made.columns["sex"], made.labels]),
        axis=1,
        return_counts=True,
    )
    known = np.unique(
        np.stack([columns["age"], columns["sex"], labels]), axis=1, return_counts=True
    )
    assert np.array_equal(seen[0], known[0]) and np.array_equal(seen[1], known[1])
    assert made.columns["age"].dtype == np.float64 and made.columns["sex"].dtype == np.int64


def test_diffgen_adds_noise_to_empty_groups() -> None:
    schema = Schema([SCHEMA.features[1]], label=SCHEMA.label)
    nobody = {"sex": np.zeros(0, np.int64)}
    entropy = SeededEntropy(4)
    sizes = np.array(
        [
            len(pfds_diffgen.release(schema, nobody, np.zeros(0, np.int64), 0.1, 1, entropy))
            for _ in range(400)
        ]
    )
    # Four counts with noise of scale 2 / epsilon; only the positive half remains.
    assert (
        sizes.mean()
        == pytest.approx(4 * 20 / 2, rel=0.15)
        != pytest.approx(sizes.mean() / 2, rel=0.15)
    )


def test_diffgen_rows_of_adult_fit_its_schema() -> None:
    schema, rng = pfds_data.task("adult").schema, np.random.default_rng(5)
    columns = {
        feature.name: rng.integers(0, len(feature.values), 300)
        if isinstance(feature, Categorical)
        else rng.integers(int(feature.low), int(feature.high) + 1, 300).astype(np.float64)
        for feature in schema.features
    }
    labels = (columns["education"] > 8).astype(np.int64)
    few, many = (
        pfds_diffgen.release(schema, columns, labels, 1.0, n, SeededEntropy(6)) for n in (1, 8)
    )
    assert len(many) > len(few) + 100, "more groups have more noise, which counts as rows"
    for feature in schema.features:
        column = many.columns[feature.name]
        if isinstance(feature, Categorical):
            assert column.min() >= 0 and column.max() < len(feature.values)
        else:
            assert (
                column.min() >= feature.low
                and column.max() <= feature.high
                and np.array_equal(column, np.rint(column))
            )
    assert pfds_baselines.design(schema, many.columns).shape == (len(many), 108)
