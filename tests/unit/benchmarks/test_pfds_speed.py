"""The cost benchmark of PFDS with small trees and few holders: names and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks import __main__ as command
from benchmarks.measure import Measure
from benchmarks.speed import pfds
from benchmarks.speed.pfds import Piqp, Tree, make_rows, make_tree
from shoal.data.schema import Categorical
from shoal.entropy import SeededEntropy


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "LEAVES": {"1k": (1_000, 7.0)},
        "AGAINST": {"2k": (2_000, 3)},
        "N_HOLDERS": 3,
        "N_ROWS": 40,
    }.items():
        monkeypatch.setattr(pfds, name, value)
    monkeypatch.setattr(pfds, "TARGETS", {"paper": 90.0, "plus": 20.0})


def index_measures(measures: Iterator[Measure]) -> dict[str, Measure]:
    found = list(measures)
    assert len({one.measure for one in found}) == len(found) and {one.bench for one in found} == {
        "pfds-speed"
    }
    return {one.measure: one for one in found}


def skip_without_piqp() -> None:
    pytest.importorskip(
        "piqp", reason="piqp (an oracle of the development environment) is not installed"
    )
    pytest.importorskip("scipy", reason="SciPy (the extra learn) is not installed")


def test_make_tree_has_four_levels_and_children_of_each_node() -> None:
    tree = make_tree(1_000, SeededEntropy(5))
    assert len(tree.parents) == len(tree.counts) == 4 and len(tree.counts[-1]) == 1_000
    for above, parents, counts in zip(tree.counts, tree.parents[1:], tree.counts[1:], strict=False):
        assert np.array_equal(np.unique(parents), np.arange(len(above))) and len(parents) == len(
            counts
        )
    assert all(count.dtype == np.int64 for count in tree.counts) and tree.counts[-1].min() < 0
    assert tree.weights == [1 / len(count) for count in tree.counts]
    assert abs(tree.counts[0][0] - pfds.N_ROWS) < 16 * pfds.SCALE


def test_projection_measure_times_the_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    def half_a_second(work: Callable[[], object], amount: int) -> float:
        done.append(work())
        return amount / 0.5

    monkeypatch.setattr(pfds, "rate", half_a_second)
    found = index_measures(pfds.measures("projection"))
    assert list(found) == ["projection_1k_ms"] and len(done) == 1 and len(done[0][-1]) == 1_000
    assert (found["projection_1k_ms"].value, found["projection_1k_ms"].target) == (500.0, 7.0)


def test_piqp_solves_the_same_problem_and_both_steps_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    skip_without_piqp()
    tree = make_tree(400, SeededEntropy(1))
    solver = Piqp(tree)
    solver.set_up()
    solver.solve()
    assert np.concatenate(tree.projected()) == pytest.approx(solver.solver.result.x, abs=0.01)
    monkeypatch.setattr(
        pfds,
        "_ms",
        lambda work: (work(), {"projected": 2.0, "set_up": 10.0, "solve": 30.0}[work.__name__])[1],
    )
    found = index_measures(pfds.measures("piqp"))
    assert found["piqp_2k_ms"].value == 40.0
    assert (found["projection_vs_piqp_2k"].value, found["projection_vs_piqp_2k"].target) == (
        20.0,
        5,
    )
    assert (
        found["projection_vs_piqp_2k_solve_alone"].value,
        found["projection_vs_piqp_2k_solve_alone"].target,
    ) == (15.0, None)


def test_different_solutions_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_piqp()
    monkeypatch.setattr(
        Tree, "projected", lambda self: [np.maximum(count, 0.0) for count in self.counts]
    )
    with pytest.raises(RuntimeError, match="do not agree"):
        list(pfds.measures("piqp"))


def test_missing_piqp_is_skipped_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pfds, "find_spec", lambda name: None)
    assert not list(pfds.measures("piqp")) and "piqp is not installed" in capsys.readouterr().err


def test_make_rows_fits_the_schema_and_assigns_evenly() -> None:
    columns, labels, owners = make_rows(SeededEntropy(0))
    assert np.bincount(owners).tolist() == [40] * 3
    assert sorted(
        len(one.values) for one in pfds.SCHEMA.features if isinstance(one, Categorical)
    ) == [2, 5, 6, 7, 9, 15, 16, 42]
    for feature in pfds.SCHEMA.features:
        column = columns[feature.name]
        low, high = (
            (0, len(feature.values) - 1)
            if isinstance(feature, Categorical)
            else (feature.low, feature.high)
        )
        assert low <= column.min() < column.max() <= high
    assert columns["age"][labels == 1].mean() > columns["age"][labels == 0].mean()


def test_plus_measures_each_trust_and_the_slower_one() -> None:
    found = index_measures(pfds.measures("plus"))
    totals = []
    for trust in ("local", "secure_sum"):
        start = f"plus_{trust}_3_agents"
        parts = [found[f"{start}_{part}_s"].value for part in ("learn", "release", "home")]
        totals.append(found[f"{start}_s"].value)
        assert min(parts) > 0 and totals[-1] == pytest.approx(sum(parts))
        assert found[f"{start}_wall_s"].value > 0 and found[f"{start}_peak_mb"].value > 0
    assert found["plus_3_agents_s"].value == max(totals) and found["plus_3_agents_s"].target == 20.0


def test_paper_measures_state_the_number_of_leaves() -> None:
    found = index_measures(pfds.measures("paper"))
    assert set(found) == {
        f"paper_3_agents_{what}"
        for what in ("share_s", "learn_s", "s", "wall_s", "leaves", "peak_mb")
    }
    assert (
        found["paper_3_agents_s"].value
        == found["paper_3_agents_share_s"].value + found["paper_3_agents_learn_s"].value
    )
    assert (
        found["paper_3_agents_leaves"].value > 3 * 2**7 and found["paper_3_agents_s"].target == 90.0
    )


def test_pfds_speed_is_registered() -> None:
    assert command.BENCHMARKS["pfds-speed"][0] == "benchmarks.speed.pfds"
