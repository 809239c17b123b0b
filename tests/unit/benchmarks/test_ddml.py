"""DDML's benchmarks on few rows: names, targets and printed tables of measures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.measure import Measure
from benchmarks.paper import ddml, plots
from benchmarks.paper.ddml import curves as ddml_curves
from benchmarks.paper.ddml import data as ddml_data
from benchmarks.paper.ddml import known_weights as ddml_known
from benchmarks.paper.ddml import mnist as ddml_mnist
from benchmarks.paper.ddml import mnist_log3 as ddml_mnist_log3
from benchmarks.paper.ddml import theory as ddml_theory
from benchmarks.paper.ddml import whole_update as ddml_update
from benchmarks.paper.ddml.mnist import Images
from shoal.entropy import SeededEntropy
from shoal.simulation.metrics import ClassificationScores, RunMean


def make_images(n: int, seed: int = 0) -> Images:
    """Return images with other bright pixels for each digit."""
    rng = np.random.default_rng(seed)
    digits = rng.integers(0, 10, n)
    pixels = (rng.random((n, 784)) < 0.05).astype(np.float32)
    pixels[np.arange(n)[:, np.newaxis], digits[:, np.newaxis] * 70 + np.arange(60)] = 1
    return Images(np.concatenate([np.ones((n, 1), np.float32), pixels], axis=1), digits)


@pytest.fixture
def toy_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[Images, Images]]:
    """Yield images stored as MNIST; two passes with NumPy, which needs no compiling."""
    parts = make_images(300), make_images(100, seed=1)
    stored = [
        (
            (part.pixels[:, 1:] * 255).astype(np.uint8).reshape(-1, 28, 28),
            part.digits.astype(np.uint8),
        )
        for part in parts
    ]
    np.savez(
        tmp_path / "mnist.npz",
        x_train=stored[0][0],
        y_train=stored[0][1],
        x_test=stored[1][0],
        y_test=stored[1][1],
    )
    for name, value in {"FILE": tmp_path / "mnist.npz", "N_PASSES": 2, "ENGINE": "numpy"}.items():
        monkeypatch.setattr(ddml_mnist, name, value)
    monkeypatch.setattr(ddml_mnist_log3, "N_VALIDATION", 100)
    caches = (ddml_mnist.images, ddml_mnist_log3.without_test, ddml_curves.curve)
    for one in caches:
        one.cache_clear()
    yield parts
    for one in caches:
        one.cache_clear()


def index_measures(measures: Iterator[Measure]) -> dict[str, Measure]:
    found = list(measures)
    assert len({one.measure for one in found}) == len(found) and {one.bench for one in found} == {
        "ddml"
    }
    return {one.measure: one for one in found}


def test_only_selects_measures_by_the_start_of_their_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ddml_theory, "INSTANCES", (2, 5))
    asked: list[tuple[int | None, str]] = []
    monkeypatch.setattr(
        ddml_known, "measures", lambda seeds=None, only="": asked.append((seeds, only)) or iter(())
    )
    assert set(index_measures(ddml.measures(only="theory_k2"))) == {
        f"theory_k2_{what}{end}"
        for what in ("spread", "survival")
        for end in ("", "_theory", "_distance")
    }
    assert list(ddml.measures(seeds=3, only="known_log32")) == [] and asked == [(3, "known_log32")]
    lines = list(ddml.markdown(only="theory_k5"))
    assert (
        lines[2].startswith("| 5 | 2.")
        and " | 2.5 | " in lines[2]
        and " | 0.2 | " in lines[2]
        and lines[3:] == [""]
    )
    monkeypatch.setattr(
        ddml_known,
        "measures",
        lambda only="": iter([Measure("ddml", "known_a_rmse", 0.1, "weight", "lower", 0.3)]),
    )
    assert list(ddml.markdown(only="known"))[2:] == [
        "| known a rmse | 0.1 | weight | at most 0.3 |",
        "",
    ]


def test_refusals_summarise_spam_in_one_row_per_attack() -> None:
    found = [
        Measure(
            "ddml", f"spam_{unit}_blend_33_in_flight_{n}_scaled_3", n / 100, "of attacks", "higher"
        )
        for unit in ("update", "weight")
        for n in (0, 20)
    ]
    assert list(ddml.refusals(iter(found)))[2:] == ["| scaled 3 | 0.0000 | 0.2000 | 4 |"]


def test_theory_measures_detect_another_merge_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    found = index_measures(ddml_theory.measures(only="theory_k5", runs=2_000))
    assert (
        found["theory_k5_spread_theory"].value == 2.5
        and found["theory_k5_survival_theory"].value == 0.2
    )
    assert all(one.value < 5 for name, one in found.items() if name.endswith("_distance"))
    monkeypatch.setattr(ddml_theory, "merge_update", lambda old, update, _: (old + update) // 2)
    assert (
        index_measures(ddml_theory.measures(only="theory_k5", runs=2_000))[
            "theory_k5_spread_distance"
        ].value
        > 5
    )


def test_images_are_read_centred_scored_and_distributed(toy_images: tuple[Images, Images]) -> None:
    asked, unseen = ddml_mnist.images()
    assert np.array_equal(asked.pixels, toy_images[0].pixels) and np.array_equal(
        unseen.digits, toy_images[1].digits
    )
    devices = asked.devices(np.random.default_rng(0))
    assert len(devices) == 30 and set(np.diff(devices.starts)) == {10}
    assert np.bincount(devices.targets.astype(int)).tolist() == np.bincount(asked.digits).tolist()
    nothing = np.zeros((10, 785))
    assert asked.loss(nothing) == pytest.approx(math.log(10)) and asked.accuracy(
        nothing
    ) == np.mean(asked.digits == 0)
    centred = asked.as_in(replace(ddml_mnist.PAPER, centred=True))
    assert (centred.pixels[:, 0] == 1).all() and set(np.unique(centred.pixels)) == {-0.5, 0.5, 1}
    assert asked.as_in(ddml_mnist.PAPER) is asked
    first, last = ddml_mnist_log3.without_test()
    assert (len(first.digits), len(last.digits)) == (200, 100) and np.array_equal(
        last.digits, asked.digits[200:]
    )


def test_spread_without_noise_is_that_of_epsilon_one() -> None:
    params, entropy = replace(ddml_mnist.PAPER, n_instances=20), SeededEntropy(1)
    expected = 20 / 2 * 8 * (0.001 * 2**24) ** 2
    assert ddml_mnist.spread(params, "average", entropy).var() == pytest.approx(expected, rel=0.02)
    assert not ddml_mnist.spread(params, "accept", entropy).any()


def test_mnist_measures_compare_with_the_figures_of_the_paper(
    toy_images: tuple[Images, Images], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len({case.name for case in ddml_mnist.CASES}) == len(ddml_mnist.CASES) == 20
    found = index_measures(ddml_mnist.measures(seeds=2, only="mnist_k20_same"))
    assert set(found) == {
        f"mnist_k20_same{which}{end}"
        for which in ("", "-average")
        for end in ("", "_se", "_distance")
    }
    assert found["mnist_k20_same_distance"].value == pytest.approx(
        abs(found["mnist_k20_same"].value - 0.856)
    )
    assert found["mnist_k20_same_distance"].target == 0.01
    assert len(list(ddml_mnist.measures(seeds=1, only="mnist_epsilon_log16"))) == 2
    monkeypatch.setattr(ddml_mnist, "TOLERANCE", 0.0)
    same, averaged = list(ddml.markdown(seeds=2, only="mnist_k20_same"))[2:4]
    assert same.startswith("| k = 20, same instance | **.") and same.endswith(")** | .856 |")
    assert averaged.startswith("| k = 20, same instance, averaged | ")


def test_mnist_log3_measures_state_the_whole_epsilon(
    toy_images: tuple[Images, Images], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ddml_mnist_log3, "CLIPS", (10.0, 0.02))
    monkeypatch.setattr(ddml_mnist_log3, "PACES", (0.05,))
    found = index_measures(ddml_mnist_log3.measures(seeds=2, only="mnist_log3_chosen_blend"))
    name = "mnist_log3_chosen_blend"
    assert (
        found[f"{name}_lowest"].value <= found[name].value <= found[f"{name}_highest"].value
        and found[name].target == 0.905
    )
    assert (found[f"{name}_clip"].value, found[f"{name}_learning_rate"].value) == (
        0.02,
        pytest.approx(5),
    )
    assert found[f"{name}_epsilon_of_each_weight"].value == pytest.approx(2 * math.log(3))
    assert found[f"{name}_epsilon_of_all_that_is_sent"].value == pytest.approx(
        7_850 * 2 * math.log(3)
    )
    row = list(ddml_mnist_log3.markdown(seeds=1, only="mnist_log3_rule_blend"))[2]
    assert row.startswith("| rule, blend | ") and row.endswith(" | 2.197 | 17,248 |")


def test_missing_images_are_skipped_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(ddml_mnist, "FILE", tmp_path / "mnist.npz")
    assert (
        list(ddml_mnist.measures()) == list(ddml_mnist_log3.measures()) == []
        and not ddml_mnist.is_there()
    )
    assert "mnist.npz is not in" in capsys.readouterr().err


def test_curves_begin_at_chance_and_improve(
    toy_images: tuple[Images, Images], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ddml_curves, "EVERY", 20)
    found = ddml_curves.curve(replace(ddml_mnist.PAPER, n_instances=1), None, 2)
    assert list(found.rows) == [0.2, 0.4, 0.6]
    assert 2 < found.loss[0] < 2.31 and found.loss[-1] < found.loss[0] and found.accuracy[-1] > 0.5
    figure = ddml_curves.figure("ddml-3", 1)
    assert figure.panels[0].title == "Figure 3: k = 20, learning rate .001"
    assert [line.name for line in figure.panels[0].lines] == [*ddml_curves.NAMES.values(), "k = 1"]
    assert len({tuple(line.y) for line in figure.panels[0].lines}) == 6
    assert len(ddml_curves.figure("ddml-2", 1).panels) == 6
    assert len(ddml_curves.figure("ddml-4", 1).panels) == 8


def test_known_weights_are_in_the_order_of_the_inputs() -> None:
    params = ddml_known.params_for(ddml_known.CASES[0], 1000)
    known = dict(zip(params.design.names, ddml_known.TRUE, strict=True))
    assert (known["constant"], known["B = 1 x E2 = d"], known["E2 = d x D"], known["D x I"]) == (
        0.34,
        -1.52,
        1.65,
        -0.8,
    )
    assert (known["E1 = C x E2 = b"], known["E1 = B x D"], known["E2 = c x I"], known["I"]) == (
        -0.42,
        0.64,
        -1.64,
        -1.67,
    )
    assert (params.unit, params.rates.clip, params.rates.learning_rate, params.n_instances) == (
        "weight",
        1.0,
        0.005,
        30,
    )


def test_known_weights_are_measured_and_drawn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = ddml_known.devices(300)
    monkeypatch.setattr(ddml_known, "devices", lambda: given)
    monkeypatch.setattr(ddml_known, "ENGINE", "numpy")
    monkeypatch.setattr(
        ddml_known, "CASES", tuple(replace(case, n_passes=1) for case in ddml_known.CASES)
    )
    found = index_measures(ddml_known.measures(only="known"))
    assert (
        0.2
        < found["known_rows_positive"].value
        < 0.5
        < found["known_rows_best_accuracy"].value
        < 0.9
    )
    assert (
        found["known_bare_1e8_rmse"].target == 0.05 and 1 < found["known_bare_1e8_rmse"].value < 1.3
    )
    figure = ddml_known.figure("ddml-5", 1)
    assert [panel.lines[1].style for panel in figure.panels] == ["points"] * 3
    assert figure.panels[0].title == "discard, no noise, 2,000,000 updates"
    pytest.importorskip("matplotlib", reason="matplotlib (the group dev) is not installed")
    assert "learned, averaged" in plots.draw(figure, tmp_path / "five.svg").read_text()


def test_dense_rows_have_a_best_auc_of_nine_tenths() -> None:
    given = ddml_data.dense(2_000, 3_000)
    assert (
        given.params.n_weights == 33 and given.params.size == len(given.split.train_labels) == 2_000
    )
    assert 0.87 < ddml_update.no_privacy(given).auc < 0.92 and ddml_update.trivial(given).auc == 0.5


def test_update_rows_are_measured_and_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ddml_data.dense(400, 400)
    for name, value in {
        "example": lambda study: given,
        "ENGINE": "numpy",
        "EPSILONS": (4.0,),
        "MERGES": ("blend",),
    }.items():
        monkeypatch.setattr(ddml_update, name, value)
    tried: list[float] = []
    honest = ddml_update.auc

    def auc(params: object, split: object, seeds: range) -> RunMean:
        tried.append(params.rates.clip / given.params.rates.clip)  # type: ignore[attr-defined]
        return (
            honest(params, split, seeds)
            if len(seeds) != ddml_update.CHOICE_SEEDS
            else RunMean(-abs(tried[-1] - 2), None)
        )  # type: ignore[arg-type]

    monkeypatch.setattr(ddml_update, "auc", auc)
    found = index_measures(ddml_update.measures(seeds=3, only="update_dense"))
    assert (
        found["update_dense_rule_blend_eps4"].target == 0.87
        and found["update_dense_rule_blend_eps4_se"].value > 0
    )
    assert tried[0] == 1 and set(tried[1:-1]) == set(ddml_update.CLIP_FACTORS) and tried[-1] == 2
    assert not list(ddml_update.measures(seeds=1, only="mnist"))
    head, _, rule, chosen = ddml_update.markdown(seeds=1, only="update_adult")
    assert head == "| | 4 | no privacy |"
    assert rule.startswith("| Adult, `blend`, rule | ") and chosen.startswith(
        "| Adult, `blend`, chosen | "
    )


def test_auc_below_its_target_is_bold() -> None:
    assert ddml_update._cell(RunMean(0.79, 0.004), 0.8) == "**.790 (.004)**"
    assert ddml_update._cell(RunMean(0.81, None), 0.8) == ".810"


def test_missing_table_of_ddml_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ddml_data, "DATA", tmp_path)
    assert ddml_data.is_there("dense") and not ddml_data.is_there("adult-ddml")
    with pytest.raises(SystemExit, match=r"adult\.csv\.gz is not in .*make data"):
        ddml_data.example.__wrapped__("adult-ddml")


def test_development_split_uses_training_rows_only() -> None:
    given = ddml_data.dense(400, 40).split
    inner = ddml_data.development(given)
    assert (len(inner.train_labels), len(inner.test_labels)) == (300, 100)
    assert set(inner.train_columns["x0"]) | set(inner.test_columns["x0"]) == set(
        given.train_columns["x0"]
    )
    assert isinstance(
        ddml_update.trivial(ddml_data.Example(ddml_data.dense(4, 4).params, inner)),
        ClassificationScores,
    )
