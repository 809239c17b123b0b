"""The benchmark of PFDS plus on few rows: holders, budgets, targets and baselines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks.measure import Measure
from benchmarks.paper import pfds
from benchmarks.paper.pfds import data as pfds_data
from benchmarks.paper.pfds import plus as pfds_plus
from benchmarks.paper.pfds import table2 as pfds_table
from benchmarks.paper.pfds import trials as pfds_trials
from benchmarks.paper.pfds.data import Rows, Split
from benchmarks.paper.pfds.plus import Found, Row
from benchmarks.paper.pfds.trials import Errors, Release, Setting, Trial
from shoal.data.schema import Categorical, Numeric, Schema
from shoal.protocols.pfds.fitting import fit_own_model
from shoal.protocols.pfds.script import TABLES, SecureSumScript

SIGNS = ("a", "b", "c", "d", "e")
FEATURES = (
    Numeric("age", 0, 80, missing=False),
    *(Categorical(sign, ["no", "yes"], missing=False) for sign in SIGNS),
)
SCHEMA = Schema(FEATURES, label=Categorical("ill", ["no", "yes"]))
SETTINGS = (pfds_trials.LOCAL, pfds_trials.SUMS, pfds_trials.SUMS_DELTA)


def make_people(n: int, seed: int = 0, *, number: bool = False) -> Rows:
    """Return people whose label follows from age and all signs, plus noise."""
    rng = np.random.default_rng(seed)
    columns = {
        "age": rng.integers(0, 81, n).astype(np.float64),
        **{sign: rng.integers(0, 2, n) for sign in SIGNS},
    }
    score = (
        columns["age"] / 80
        + sum((columns[sign] - 0.5) / (i + 1) for i, sign in enumerate(SIGNS))
        - 0.6
        + rng.normal(size=n) / 4
    )
    schema = Schema(FEATURES, Numeric("score", -2, 2)) if number else SCHEMA
    return Rows(
        schema,
        columns,
        np.clip(score, -2, 2) if number else (score > 0).astype(np.int64),
        columns["age"] / 80,
    )


def make_trial(n: int = 3_000, m: int = 20, *, number: bool = False) -> Trial:
    """Return a trial: holder 17 has most rows, each before it a hundredth, the others none."""
    owners = np.minimum(np.arange(n) % 100, 17)
    return Trial(
        ("people", 0),
        Split(make_people(n, number=number), make_people(1_000, 1, number=number), owners, m),
    )


def index_measures(measures: Iterator[Measure]) -> dict[str, Measure]:
    found = list(measures)
    assert len({one.measure for one in found}) == len(found) and {one.bench for one in found} == {
        "pfds"
    }
    return {one.measure: one for one in found}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace each table by few people with few holders."""
    monkeypatch.setattr(pfds_trials, "N_HOLDERS", 4)
    monkeypatch.setattr(pfds_data, "rows", lambda name: make_people(1_500, number=name == "bike"))
    monkeypatch.setattr(pfds_plus, "is_there", lambda task: True)


def test_holders_are_drawn_from_holders_with_rows() -> None:
    one = make_trial()
    counted, drawn = (
        np.bincount(one.split.owners, minlength=20),
        [Trial(("people", i), one.split).holders for i in range(40)],
    )
    assert (counted > 0).sum() == 18 and {len(set(holders.tolist())) for holders in drawn} == {12}
    assert set(np.concatenate(drawn).tolist()) == set(range(18)) and counted.argmin() >= 18
    few = Trial(("people", 0), Split(one.split.training, one.split.test, one.split.owners % 7, 10))
    assert sorted(few.holders.tolist()) == list(range(7))


def test_baselines_are_errors_on_the_test_rows() -> None:
    one = make_trial()
    test, training = one.split.test, one.split.training
    assert one.trivial == pytest.approx(
        float(np.mean(test.labels != np.bincount(training.labels).argmax()))
    )
    holder = int(one.holders[3])
    alone = fit_own_model(one.bare, one.rows.take(one.split.owners == holder))
    assert one.own[3] == pytest.approx(float(np.mean(alone.decide(test.columns) != test.labels)))
    assert one.own.shape == (12,) and one.pooled < one.own.mean() < one.trivial


def test_error_of_a_number_is_scaled_to_minus_one_to_one() -> None:
    one = make_trial(number=True)
    test, training = one.split.test, one.split.training
    assert one.trivial == pytest.approx(
        float(np.mean(((test.labels - training.labels.mean()) / 2) ** 2))
    )
    assert one.pooled == pytest.approx(1 / 4**2 / 4, rel=0.2) and one.pooled < one.own.mean()


def test_study_of_a_trial_declares_the_true_size() -> None:
    one = make_trial(m=100)
    params = {
        setting.key: one.params(0.5, setting.changes)
        for setting in (*SETTINGS, pfds_trials.SUMS_C33, pfds_trials.SUMS_DELTA_C33)
    }
    assert {
        (each.variant, each.epsilon, each.size, each.n_holders, each.minimum)
        for each in params.values()
    } == {("plus", 0.5, 3000, 100, 100)}
    assert {key: (each.trust, each.delta, each.n_honest) for key, each in params.items()} == {
        "local": ("local", 0.0, 1),
        "sums": ("secure-sum", 0.0, 100),
        "sums_delta": ("secure-sum", 1e-6, 100),
        "sums_c33": ("secure-sum", 0.0, 67),
        "sums_delta_c33": ("secure-sum", 1e-6, 67),
    }
    mechanisms = [
        SecureSumScript(params[key]).find_mechanism(TABLES) for key in ("sums", "sums_c33")
    ]
    one_noise, more_noise = (mechanism.variance(100) for mechanism in mechanisms if mechanism)
    assert more_noise / one_noise == pytest.approx(100 / 67, rel=1e-3)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_release_with_little_noise_is_close_to_pooled(setting: Setting) -> None:
    one = make_trial()
    release = Release(one, setting, 50.0)
    home, model, data = (release.errors(use) for use in ("home", "model", "data"))
    assert home.shape == model.shape == data.shape == one.own.shape
    assert len(set(model.tolist())) == len(set(data.tolist())) == 1 < len(set(home.tolist()))
    assert model[0] == one.compute_error(release.model) and data[0] != model[0]
    assert max(model[0], data[0]) < one.pooled + 0.04 and home.mean() < one.own.mean() - 0.03
    assert Errors([home]).gains(Errors([one.own])) > 50


def test_release_of_a_number_is_better_than_own_rows() -> None:
    one = make_trial(number=True)
    assert Release(one, pfds_trials.SUMS, 50.0).errors("home").mean() < one.own.mean() < one.trivial


def test_release_depends_on_split_setting_and_budget_only() -> None:
    one = make_trial()
    first, again = (Release(one, pfds_trials.SUMS, 0.1).model.weights for _ in range(2))
    assert np.array_equal(first, again)
    others = [
        Release(Trial(("people", 1), one.split), pfds_trials.SUMS, 0.1),
        Release(one, pfds_trials.SUMS, 0.1001),
        Release(one, Setting("again", "", pfds_trials.SUMS.changes), 0.1),
    ]
    assert all(not np.allclose(first, other.model.weights, atol=1e-3) for other in others)


def test_errors_average_over_holders_then_splits() -> None:
    errors, own = (
        Errors([np.array([0.1, 0.3]), np.array([0.4])]),
        Errors([np.array([0.2, 0.2]), np.array([0.4])]),
    )
    assert errors.value == pytest.approx(0.3) and errors.uncertainty == pytest.approx(
        0.2 / math.sqrt(2) / math.sqrt(2)
    )
    assert errors.gains(own) == pytest.approx(100 / 3) and errors.to_text() == "0.3000 (0.1000)"
    assert Errors([np.array([0.1, 0.3])]).uncertainty == 0


def test_trials_are_numbered_and_test_on_the_reporting_half(
    small: None,
) -> None:
    whole, reporting = make_people(1_500), pfds_data.halves(1_500)[1]
    unseen = {_row(whole, i) for i in reporting.tolist()}
    first, second = pfds_trials.trials("adult", 2)
    assert (first.path, second.path) == (
        ("adult", 0),
        ("adult", 1),
    ) and first.split.n_holders == 100
    for one in (first, second):
        assert (
            len(one.split.test) == 150 and {_row(one.split.test, i) for i in range(150)} <= unseen
        )


def _row(rows: Rows, i: int) -> tuple[float, ...]:
    return (rows.key[i], rows.labels[i], *(column[i] for column in rows.columns.values()))


def test_measures_have_baselines_and_targets(small: None) -> None:
    found = index_measures(pfds.measures(seeds=2, only="plus_adult"))
    assert len(
        {row.name(epsilon) for row in pfds_plus.ROWS for epsilon in (1.0, 0.5, 0.1)}
    ) == 3 * len(pfds_plus.ROWS)
    assert len(found) == 6 + 3 * 3 * sum(row.table == "adult" for row in pfds_plus.ROWS)
    trivial, pooled, own = (found[f"plus_adult_{key}"] for key in ("trivial", "pooled", "own"))
    assert pooled.value < own.value < trivial.value and found["plus_adult_own_se"].value > 0
    home = found["plus_adult_sums_home_eps0.5"]
    assert (home.target, home.better, home.unit, home.competitor) == (
        0.153,
        "lower",
        "error",
        "own rows alone",
    )
    assert (
        home.ratio == pytest.approx(home.value / own.value)
        and 0 <= found["plus_adult_sums_home_eps0.5_gain"].value <= 100
    )
    assert (
        found["plus_adult_local_data_eps0.1"].target == 0.19
        and found["plus_adult_sums_c33_home_eps1"].target is None
    )
    assert {one.unit for one in pfds.measures(seeds=1, only="plus_bike_local_home_eps1")} == {
        "mse",
        "%",
    }
    assert len(index_measures(pfds.measures(seeds=1, only="plus_news_sums_home_eps0.1"))) == 9
    splits = list(pfds_trials.trials("adult", 2))
    by_hand = np.mean([Release(one, pfds_trials.SUMS, 0.5).errors("home").mean() for one in splits])
    assert home.value == pytest.approx(by_hand)


def test_targets_are_the_claimed_ones() -> None:
    goals = {
        (row.table, row.setting.key): tuple(row.goals.values())
        for row in pfds_plus.ROWS
        if row.use == "home" and row.goals
    }
    assert goals["bank", "sums_delta"] == (0.102, 0.103, 0.107) and goals["news", "local"] == (
        0.435,
        0.443,
    )
    assert (
        goals["retinopathy", "sums"] == (0.405,)
        and ("retinopathy", "local") not in goals
        and len(goals) == 17
    )
    # Settings are in order of less noise: no target is stricter for more noise.
    for table in ("phishing", "bike", "bank", "adult"):
        by_trust = np.array([goals[table, setting.key] for setting in SETTINGS])
        assert np.all(np.diff(by_trust, axis=0) <= 0) and np.all(np.diff(by_trust, axis=1) >= 0)


def test_missed_target_is_bold(small: None) -> None:
    lines = list(pfds.markdown(seeds=1, only="plus_phishing_sums_home"))
    assert lines[0] == "| Phishing | target | 1 | 0.5 | 0.1 |" and lines[-1] == ""
    assert [line.count("|") for line in lines[:-1]] == [6] * 6 and lines[5].startswith(
        "| personal model, secure-sum, pure | .080 / .080 / .088 | "
    )
    row = Row("x", pfds_trials.LOCAL, goals={1.0: 0.2, 0.5: 0.2})
    own = Errors([np.array([0.3])])
    errors = {(row, 1.0): Errors([np.array([0.2])]), (row, 0.5): Errors([np.array([0.4])])}
    cells = list(pfds_plus._cells(row, Found({"own": own}, errors)))
    assert cells == ["0.2000 (0.0000) 100 %", "**0.4000 (0.0000)** 0 %", ""]


def test_only_selects_plus_or_paper_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in {"plus": pfds_plus, "paper": pfds_table}.items():
        monkeypatch.setattr(
            module,
            "measures",
            lambda only, seeds=7, name=name: iter(
                [Measure("pfds", f"{name}_{seeds}", 1.0, "x", "lower")]
            ),
        )
        monkeypatch.setattr(
            module, "markdown", lambda only, seeds=7, name=name: iter([f"{name} {seeds} {only}"])
        )
    assert set(index_measures(pfds.measures())) == {"plus_7", "paper_7"}
    assert set(index_measures(pfds.measures(seeds=3, only="plus_adult"))) == {"plus_3"}
    assert list(pfds.markdown(seeds=2, only="paper_bike")) == ["paper 2 paper_bike"]
    assert command.BENCHMARKS["pfds"][0] == "benchmarks.paper.pfds"


def test_each_table_has_its_default_number_of_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    nothing = Errors([np.array([0.5])])
    monkeypatch.setattr(pfds_plus, "is_there", lambda task: True)
    monkeypatch.setattr(pfds_plus, "trials", lambda table, seeds: asked.append((table, seeds)))
    monkeypatch.setattr(
        pfds_plus,
        "measure_errors",
        lambda splits, rows: Found(
            dict.fromkeys(pfds_plus.YARDSTICKS, nothing), dict.fromkeys(rows, nothing)
        ),
    )
    assert len(list(pfds_plus.measures())) == len(index_measures(pfds_plus.measures(11)))
    names = ("retinopathy", "phishing", "news", "bike", "bank", "adult")
    assert asked == [
        *zip(names, (100, 20, 20, 20, 20, 20), strict=True),
        *((name, 11) for name in names),
    ]


def test_missing_tables_are_skipped_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(pfds_data, "DATA", tmp_path)
    assert not list(pfds_plus.measures(1)) and "adult.csv.gz is not in" in capsys.readouterr().err
