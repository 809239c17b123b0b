"""PFDS's tables, splits and rivals: whose rows are whose, what a rival finds without noise, and how much noise it adds."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from benchmarks.paper import pfds_data, pfds_diffgen, pfds_rivals
from benchmarks.paper.pfds_data import Rows, Split
from benchmarks.paper.pfds_diffgen import Group, Range
from benchmarks.paper.pfds_rivals import Kind, Linear
from shoal.domain import Categorical, Numeric, Schema
from shoal.entropy import SeededEntropy
from shoal.mechanisms.exponential import ExponentialMechanism

SCHEMA = Schema(
    [Numeric("age", 0, 80, missing=False), Categorical("sex", ["Female", "Male"], missing=False)], label=Categorical("ill", ["no", "yes"])
)


def people(n: int, seed: int = 0, *, number: bool = False) -> Rows:
    """People whose label follows from both features, but for chance."""
    rng = np.random.default_rng(seed)
    columns = {"age": rng.integers(0, 81, n).astype(np.float64), "sex": rng.integers(0, 2, n)}
    score = columns["age"] / 80 + columns["sex"] - 1 + rng.normal(size=n) / 10
    schema = Schema(SCHEMA.features, Numeric("score", -2, 2)) if number else SCHEMA
    return Rows(schema, columns, np.clip(score, -2, 2) if number else (score > 0).astype(np.int64), columns["age"] / 80)


def split(n: int = 600, *, number: bool = False) -> Split:
    """Four holders; the last one has no rows."""
    training = people(n, number=number)
    return Split(training, people(300, 1, number=number), np.arange(n) % 3, 4)


def as_design(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    return pfds_rivals.design(rows.schema, rows.columns), pfds_rivals.targets(rows.schema, rows.labels)


@pytest.fixture
def numbered(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Rows that tell their number, in the place of a table."""
    whole = Rows(SCHEMA, {"age": np.arange(1000.0), "sex": np.zeros(1000, np.int64)}, np.arange(1000), np.linspace(0, 1, 1000))
    monkeypatch.setattr(pfds_data, "rows", lambda name: whole)
    return whole


def test_test_rows_come_from_the_half_on_which_nothing_was_chosen(numbered: Rows) -> None:
    order = np.random.default_rng(12345).permutation(1000)
    first, second = set(order[:500].tolist()), set(order[500:].tolist())
    found = list(pfds_data.splits("adult", 3, seed=4))
    for one in found:
        test, training = set(one.test.labels.tolist()), set(one.training.labels.tolist())
        assert len(test) == 100 and test <= second and training == set(range(1000)) - test
        assert len(one.whose) == 900 and one.n_holders == 100 and one.whose.max() < 100
        assert np.array_equal(one.training.key, numbered.key[one.training.labels])
    assert len({tuple(one.test.labels) for one in found}) == 3
    again = next(pfds_data.splits("adult", 1, seed=5))
    assert np.array_equal(again.test.labels, found[1].test.labels) and np.array_equal(again.whose, found[1].whose)
    for one in pfds_data.splits("adult", 2, development=True):
        test, training = set(one.test.labels.tolist()), set(one.training.labels.tolist())
        assert len(test) == 50 and test | training == first and not test & training and one.n_holders == 50
    assert next(pfds_data.splits("retinopathy", 1, development=True)).n_holders == 5


def test_a_row_goes_to_a_holder_by_a_chance_inverse_to_their_distance() -> None:
    key = np.full(40_000, 0.3)
    points = np.random.default_rng(6).random(5)
    nearness = 1 / np.abs(points - 0.3)
    shares = np.bincount(pfds_data.partition(key, 5, np.random.default_rng(6)), minlength=5) / 40_000
    assert shares == pytest.approx(nearness / nearness.sum(), abs=0.01)
    assert set(pfds_data.partition(np.full(1000, points[2]), 5, np.random.default_rng(6))) == {2}


def test_a_holder_has_its_own_rows() -> None:
    one = split(9)
    assert np.array_equal(one.rows_of(1).labels, one.training.labels[[1, 4, 7]]) and len(one.rows_of(3)) == 0


def test_an_article_is_popular_or_has_a_number_of_shares(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    features = pfds_data.task("news").schema.features
    cells = [str(feature.low) if isinstance(feature, Numeric) else "0" for feature in features]
    head = [feature.name for feature in features]
    table = "\n".join(",".join(line) for line in ([*head, "shares"], [*cells, "1400"], [*cells, "1401"], [*cells, "1000"]))
    (tmp_path / "online_news_sample.csv.gz").write_bytes(gzip.compress(table.encode()))
    monkeypatch.setattr(pfds_data, "DATA", tmp_path)
    as_class, as_number = pfds_data.rows.__wrapped__("news"), pfds_data.rows.__wrapped__("news_number")
    assert as_class.labels.tolist() == [0, 1, 0] and as_number.labels[2] == 3
    assert as_class.key.tolist() == [0, 0, 0] and len(as_class.schema.names) == 58
    assert pfds_data.task("news_number").is_number and not pfds_data.task("news").is_number


def test_a_table_that_is_not_there_is_left_out_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(pfds_data, "DATA", tmp_path)
    assert not pfds_data.is_there(pfds_data.task("bike")) and "bike_sharing_hour.csv.gz is not in" in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in pfds_data.TASKS if name != "news_number"])
def test_every_table_fits_its_schema(name: str) -> None:
    task = pfds_data.task(name)
    if not pfds_data.is_there(task):
        pytest.skip(f"{task.file} is not on this machine")
    rows = pfds_data.rows(name)
    coded = pfds_rivals.design(task.schema, rows.columns)
    assert coded.min() >= 0 and coded.max() <= 1 and coded.sum(axis=1).max() <= len(task.schema.names)
    assert rows.key.min() >= 0 and rows.key.max() <= 1 and np.unique(rows.key).size > 10
    expected = {"adult": 14, "bank": 16, "bike": 12, "news": 58, "retinopathy": 19, "phishing": 30}
    assert len(task.schema.names) == expected[name] and task.n_holders == (10 if name == "retinopathy" else 100)


def test_rows_are_coded_by_places_in_ranges_and_a_column_for_each_value() -> None:
    columns = {"age": np.array([0.0, 20.0, 80.0]), "sex": np.array([1, 0, 0])}
    assert pfds_rivals.design(SCHEMA, columns).tolist() == [[0, 0, 1], [0.25, 1, 0], [1, 1, 0]]
    assert pfds_rivals.targets(SCHEMA, np.array([0, 1])).tolist() == [0, 1]
    assert pfds_rivals.targets(Schema(SCHEMA.features, Numeric("score", 0, 10)), np.array([0.0, 5.0, 10.0])).tolist() == [-1, 0, 1]


@pytest.mark.parametrize("kind", ["logistic", "svm"])
def test_classes_are_learned_alone_and_together(kind: Kind) -> None:
    given = split()
    found = pfds_rivals.own_and_pooled(kind, given)
    share = given.test.labels.mean()
    assert found.trivial == pytest.approx(min(share, 1 - share)) and len(found.own) == 3
    assert found.pooled < 0.12 < found.trivial and all(found.pooled - 0.05 < own < 0.2 for own in found.own)
    assert pfds_rivals.own_and_pooled(kind, given, [1, 3]).own == found.own[1:2]
    x, _ = as_design(given.test)
    for only in (0.0, 1.0):
        assert set(pfds_rivals.erm(kind, x, np.full(len(x), only)).predict(x)) == {only}


@pytest.mark.parametrize("kind", ["linear", "ridge"])
def test_numbers_are_learned_alone_and_together(kind: Kind) -> None:
    found = pfds_rivals.own_and_pooled(kind, split(number=True))
    _, truth = as_design(people(300, 1, number=True))
    assert found.trivial == pytest.approx(truth.var(), rel=0.05) and found.pooled == pytest.approx(0.05**2, rel=0.3)
    assert Linear(np.array([4.0]), 0.0, is_number=True).predict(np.array([[1.0], [-1.0], [0.1]])).tolist() == [1, -1, 0.4]


def test_most_predictors_or_their_mean_decide() -> None:
    x = np.zeros((1, 1))
    said = [Linear(np.zeros(1), score, is_number=False) for score in (5.0, 5.0, -1.0, -1.0)]
    assert pfds_rivals.together(said, x).tolist() == [0] and pfds_rivals.together(said[:3], x).tolist() == [1]
    assert pfds_rivals.together([Linear(np.zeros(1), score, is_number=True) for score in (5.0, -0.5)], x).tolist() == [0.25]


def test_without_noise_the_perturbed_objective_has_the_usual_minimum() -> None:
    x, y = as_design(people(200))
    rows, signs = np.column_stack([x, np.ones(200)]) / math.sqrt(3), 2 * y - 1
    found = pfds_rivals.objective_perturbation("logistic", rows, signs, math.inf, np.random.default_rng(0), 0.01)
    known = LogisticRegression(C=1 / (200 * 0.01), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(rows, y)
    assert found == pytest.approx(known.coef_.ravel(), abs=1e-4)
    nearly = pfds_rivals.objective_perturbation("logistic", rows, signs, 1e9, np.random.default_rng(0), 0.01)
    assert nearly == pytest.approx(found, abs=1e-5)


def test_without_noise_the_smooth_support_vector_machine_is_at_its_minimum() -> None:
    x, y = as_design(people(200))
    rows, signs = np.column_stack([x, np.ones(200)]) / math.sqrt(3), 2 * y - 1

    def plain(w: np.ndarray) -> float:
        h, losses = pfds_rivals.HUBER, []
        for margin in (rows @ w) * signs:
            losses.append(0.0 if margin > 1 + h else 1 - margin if margin < 1 - h else (1 + h - margin) ** 2 / (4 * h))
        return float(np.mean(losses)) + 0.01 / 2 * float(w @ w)

    found = pfds_rivals.objective_perturbation("svm", rows, signs, math.inf, np.random.default_rng(0), 0.01)
    for step in np.vstack([np.eye(4), -np.eye(4)]) * 1e-3:
        assert plain(found + step) > plain(found)


def test_a_row_moves_the_slope_and_the_curvature_no_further_than_is_paid_for() -> None:
    margins = np.linspace(-4, 4, 8001)
    for kind, c in (("logistic", 0.25), ("svm", 1.0)):
        _, slope = pfds_rivals._loss(kind, margins)
        assert np.abs(slope).max() <= 1 and np.diff(slope).max() / 1e-3 == pytest.approx(c, rel=1e-3)
        left, more = pfds_rivals.spent(kind, 50, 1.0, 0.3)
        assert more == 0 and left == pytest.approx(1 - math.log(1 + 2 * c / 15 + c**2 / 15**2))
        left, more = pfds_rivals.spent(kind, 50, 0.1, 0.03)
        assert more > 0 and left == 0.05 and 2 * math.log(1 + c / (50 * (0.03 + more))) == pytest.approx(0.05)


def has_length(lengths: np.ndarray, d: int, scale: float) -> bool:
    """Whether lengths have the mean and the variance of a Gamma variable, to within a tenth and a fifth."""
    return abs(lengths.mean() / (d * scale) - 1) < 0.1 and abs(lengths.var() / (d * scale**2) - 1) < 0.2


@pytest.mark.parametrize(("epsilon", "penalty"), [(1.0, 0.3), (0.1, 0.03)])
def test_the_objective_has_the_noise_that_epsilon_asks_for(epsilon: float, penalty: float) -> None:
    # Rows of zeros leave the noise alone: its opposite, divided by all of the penalty.
    rng, n, d = np.random.default_rng(2), 50, 6
    drawn = [pfds_rivals.objective_perturbation("logistic", np.zeros((n, d)), np.ones(n), epsilon, rng, penalty) for _ in range(1000)]
    left, more = pfds_rivals.spent("logistic", n, epsilon, penalty)
    noise = np.array(drawn) * n * (penalty + more)
    lengths = np.linalg.norm(noise, axis=1)
    assert has_length(lengths, d, 2 / left) and not has_length(lengths / 2, d, 2 / left)
    assert np.abs((noise / lengths[:, np.newaxis]).mean(axis=0)).max() < 5 / math.sqrt(1000 * d)


def test_without_noise_the_functional_mechanism_finds_least_squares() -> None:
    x, y = as_design(people(200, number=True))
    rows = np.column_stack([x, np.ones(200)])
    found = pfds_rivals.functional_mechanism(rows, y, 3, math.inf, np.random.default_rng(0))
    assert found == pytest.approx(np.linalg.lstsq(rows, y, rcond=None)[0], abs=1e-8)
    model = pfds_rivals.private("linear", x, y, 2, math.inf, np.random.default_rng(0))
    assert model.predict(x) == pytest.approx(pfds_rivals.erm("linear", x, y).predict(x), abs=1e-8)


def test_no_row_changes_the_coefficients_by_more_than_the_noise_is_made_for() -> None:
    rng, most = np.random.default_rng(3), 0.0
    x, _ = as_design(people(50))
    rows, bound = np.column_stack([x, np.ones(50)]), 3
    silent = np.random.default_rng(0)
    for row in [*rows, np.array([1.0, 1.0, 0.0, 1.0])]:
        y = np.array([rng.choice([-1.0, 1.0])])
        q, v, _ = pfds_rivals.noisy_quadratic(row[np.newaxis], y, bound, math.inf, silent)
        most = max(most, 1 + 2 * np.abs(v).sum() + np.abs(q).sum())
    *_, deviation = pfds_rivals.noisy_quadratic(rows, np.zeros(50), bound, 0.5, silent)
    assert most == pytest.approx((1 + bound) ** 2) and deviation == pytest.approx(math.sqrt(2) * 2 * most / 0.5)


def test_every_coefficient_has_the_noise_that_epsilon_asks_for() -> None:
    rng, d = np.random.default_rng(4), 80
    q, v, deviation = pfds_rivals.noisy_quadratic(np.zeros((1, d)), np.zeros(1), 3, 0.5, rng)
    assert np.array_equal(q, q.T) and deviation == pytest.approx(math.sqrt(2) * 64)
    assert q[np.triu_indices(d, 1)].std() == pytest.approx(deviation / 2, rel=0.1)
    assert np.diag(q).std() == pytest.approx(deviation, rel=0.35) and v.std() == pytest.approx(deviation / 2, rel=0.35)
    assert np.diag(q / 2).std() != pytest.approx(deviation, rel=0.35) != (v / 2).std()


def test_directions_without_a_minimum_are_left_out() -> None:
    rows, y = np.zeros((5, 60)), np.zeros(5)
    q, v, deviation = pfds_rivals.noisy_quadratic(rows, y, 3, 1.0, np.random.default_rng(5))
    values, vectors = np.linalg.eigh(q + 4 * deviation * np.eye(60))
    found = pfds_rivals.functional_mechanism(rows, y, 3, 1.0, np.random.default_rng(5))
    along = found @ vectors
    assert (values < 0).any() and np.abs(along[values < 0]).max() < 1e-9
    assert along[values > 0] * values[values > 0] == pytest.approx((v @ vectors)[values > 0])


def test_no_row_is_longer_than_the_noise_is_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, longest = pfds_rivals.objective_perturbation, []

    def noted(kind: Kind, rows: np.ndarray, *rest: object) -> np.ndarray:
        longest.append(np.linalg.norm(rows, axis=1).max())
        return honest(kind, rows, *rest)

    monkeypatch.setattr(pfds_rivals, "objective_perturbation", noted)
    x = np.array([[1.0, 1.0, 0.0], [0.5, 0.0, 1.0]])
    model = pfds_rivals.private("logistic", x, np.array([0.0, 1.0]), 2, 1.0, np.random.default_rng(9))
    assert longest == [pytest.approx(1)]
    rows = np.column_stack([x, np.ones(2)]) / math.sqrt(3)
    weights = honest("logistic", rows, np.array([-1.0, 1.0]), 1.0, np.random.default_rng(9))
    assert x @ model.weights + model.intercept == pytest.approx(rows @ weights)


@pytest.mark.parametrize(("kind", "number"), [("logistic", False), ("svm", False), ("linear", True)])
def test_private_predictors_are_put_together(kind: Kind, number: bool) -> None:
    given = split(number=number)
    yardsticks = pfds_rivals.own_and_pooled(kind, given)
    rng = np.random.default_rng(7)
    without_noise = pfds_rivals.dp_pred(kind, given, math.inf, rng, penalty=1e-4)
    assert without_noise < yardsticks.pooled + 0.02
    x, y = as_design(given.training)
    unseen, truth = as_design(given.test)
    models = [pfds_rivals.private(kind, x[i::3], y[i::3], 2, 1.0, np.random.default_rng(8)) for i in (2,)]
    one = pfds_rivals.dp_pred(kind, given, 1.0, np.random.default_rng(8), sharers=[2, 3])
    assert one == pfds_rivals.error(truth, pfds_rivals.together(models, unseen))
    noisy = np.mean([pfds_rivals.dp_pred(kind, given, 0.001, rng) for _ in range(20)])
    assert noisy > without_noise + 0.05


def test_the_taxonomy_has_every_value_of_adult_once() -> None:
    schema = pfds_data.task("adult").schema
    for feature in schema.features:
        if isinstance(feature, Categorical):
            top = pfds_diffgen.grouped(pfds_diffgen.TAXONOMY[feature.name], feature.values)
            assert sorted(top.members) == list(range(len(feature.values)))
            check_parts(top)
    assert set(pfds_diffgen.TAXONOMY) == {feature.name for feature in schema.features if isinstance(feature, Categorical)}


def check_parts(group: Group) -> None:
    """All values are in one part, down to single values."""
    assert (len(group.members) == 1) == (not group.parts) and len(group.parts) != 1
    assert not group.parts or sorted(code for part in group.parts for code in part.members) == sorted(group.members)
    for part in group.parts:
        check_parts(part)


def test_a_range_is_cut_at_whole_numbers() -> None:
    assert Range(3, 6).cuts.tolist() == [4, 5, 6] and Range(3, 3).cuts.size == 0 and Range(3, 3).parts == ()
    wide = Range(0, 100_000).cuts
    assert wide.size == pfds_diffgen.MOST_CUTS and (wide[0], wide[-1]) == (100, 100_000)
    assert Range(3, 6, 5).parts == (Range(3, 4), Range(5, 6)) and Range(3, 6, 5).part_of(np.array([4.0, 5.0])).tolist() == [0, 1]
    assert set(Range(3, 6).draw(200, SeededEntropy(1))) == {3, 4, 5, 6}
    assert set(Group((2, 7)).draw(200, SeededEntropy(1))) == {2, 7}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """The epsilon and the candidates of every choice that is made."""
    made: list[tuple[float, int]] = []
    honest = ExponentialMechanism.choose

    def choose(self: ExponentialMechanism, scores: np.ndarray, entropy: SeededEntropy) -> int:
        made.append((self.epsilon, len(scores)))
        return honest(self, scores, entropy)

    monkeypatch.setattr(ExponentialMechanism, "choose", choose)
    return made


def test_choices_cost_half_of_epsilon_and_what_tells_classes_apart_is_told_apart(calls: list[tuple[float, int]]) -> None:
    given = people(2000)
    made = pfds_diffgen.release(SCHEMA, given.columns, given.columns["sex"], 60.0, 1, SeededEntropy(1))
    assert len(made) == pytest.approx(2000, abs=3) and (made.labels == made.columns["sex"]).mean() > 0.99
    # One cut of the number, and one choice among it and the category; the step's own cuts were not needed.
    assert calls == [(10.0, 80), (10.0, 2)] and pfds_diffgen.query_share(60, 1, 1) * (1 + 2 * 1) == 30
    calls.clear()
    made = pfds_diffgen.release(SCHEMA, given.columns, (given.columns["age"] >= 40).astype(np.int64), 60.0, 1, SeededEntropy(1))
    first, _, younger, older = calls
    assert younger[1] + older[1] == first[1] - 1 == 79
    assert ((made.columns["age"] >= 40) == made.labels).mean() > 0.98
    assert abs(made.columns["age"][made.labels == 0].mean() - 19.5) < 1.5


def test_a_half_of_a_range_is_cut_by_its_own_rows() -> None:
    schema = Schema([Numeric("age", 0, 60)], label=SCHEMA.label)
    ages = np.repeat(np.arange(61.0), [10] * 60 + [20_000])
    labels = ((ages >= 20) & (ages < 60)).astype(np.int64)
    # The first cut is at 60; only among the rows below it is 20 the best place for another one.
    made = pfds_diffgen.release(schema, {"age": ages}, labels, 60.0, 2, SeededEntropy(2))
    assert set(made.columns["age"][made.labels == 1]) == set(range(20, 60))
    assert set(made.columns["age"][made.labels == 0]) == {*range(20), 60}


def test_values_are_told_apart_until_all_are_single() -> None:
    schema = Schema([Numeric("age", 0, 2), SCHEMA.features[1]], label=SCHEMA.label)
    columns = {"age": np.array([0.0, 1.0, 2.0, 2.0] * 50), "sex": np.array([0, 1, 0, 1] * 50)}
    labels = np.array([0, 1, 1, 0] * 50)
    made = pfds_diffgen.release(schema, columns, labels, 64.0, 9, SeededEntropy(3))
    seen = np.unique(np.stack([made.columns["age"], made.columns["sex"], made.labels]), axis=1, return_counts=True)
    known = np.unique(np.stack([columns["age"], columns["sex"], labels]), axis=1, return_counts=True)
    assert np.array_equal(seen[0], known[0]) and np.array_equal(seen[1], known[1])
    assert made.columns["age"].dtype == np.float64 and made.columns["sex"].dtype == np.int64


def test_empty_groups_have_noise_too() -> None:
    schema = Schema([SCHEMA.features[1]], label=SCHEMA.label)
    nobody = {"sex": np.zeros(0, np.int64)}
    entropy = SeededEntropy(4)
    sizes = np.array([len(pfds_diffgen.release(schema, nobody, np.zeros(0, np.int64), 0.1, 1, entropy)) for _ in range(400)])
    # Four counts, each with noise of scale 2 / epsilon, of which the positive half is left.
    assert sizes.mean() == pytest.approx(4 * 20 / 2, rel=0.15) != pytest.approx(sizes.mean() / 2, rel=0.15)


def test_made_up_rows_of_adult_are_rows_of_adult() -> None:
    schema, rng = pfds_data.task("adult").schema, np.random.default_rng(5)
    columns = {
        feature.name: rng.integers(0, len(feature.values), 300)
        if isinstance(feature, Categorical)
        else rng.integers(int(feature.low), int(feature.high) + 1, 300).astype(np.float64)
        for feature in schema.features
    }
    labels = (columns["education"] > 8).astype(np.int64)
    few, many = (pfds_diffgen.release(schema, columns, labels, 1.0, n, SeededEntropy(6)) for n in (1, 8))
    assert len(many) > len(few) + 100, "more groups have more noise that is taken for rows"
    for feature in schema.features:
        column = many.columns[feature.name]
        if isinstance(feature, Categorical):
            assert column.min() >= 0 and column.max() < len(feature.values)
        else:
            assert column.min() >= feature.low and column.max() <= feature.high and np.array_equal(column, np.rint(column))
    assert pfds_rivals.design(schema, many.columns).shape == (len(many), 108)
