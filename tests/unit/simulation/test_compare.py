"""Comparisons: the rows and runs of a simulation, guarantees, and misfits."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from shoal.cli.hello.population import make_people
from shoal.entropy import SeededEntropy
from shoal.errors import ShoalError, UsageError
from shoal.simulation import compare as comparing
from shoal.simulation.alternatives import ALTERNATIVES, derive_study
from shoal.simulation.compare import ComparisonOptions, compare_study, count_steps
from shoal.simulation.registry import make_simulation_params, run, score_baselines
from shoal.simulation.run import RunTask, Split
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from shoal.study.spec import Study
from shoal.study.validation import parse_content, parse_study

N, SEED = 800, 5
PEOPLE, OTHERS = make_people(N, SeededEntropy(3)), make_people(300, SeededEntropy(4))
NAMES = ("coffee", "shifts", "children")
SPLIT = Split(
    {name: PEOPLE.columns[name] for name in NAMES},
    PEOPLE.labels,
    {name: OTHERS.columns[name] for name in NAMES},
    OTHERS.labels,
)
CONTENT: dict[str, Any] = {
    "title": "Sleep",
    "purpose": "Who sleeps badly?",
    "contact": "a@example.org",
    "protocol": "anonml",
    "label": {"name": "sleeps_badly", "values": ["no", "yes"]},
    "feature": [
        {"name": "coffee", "range": [0, 8], "missing": False},
        {"name": "shifts", "values": ["no", "yes"], "missing": False},
        {"name": "children", "values": ["none", "older", "small"], "missing": False},
    ],
    "privacy": {"epsilon": 1.0},
    "participation": {"minimum": 400, "size": N},
}
STUDY = parse_study(CONTENT)
KEYS = {
    "name", "protocol", "variant", "trust", "settings", "epsilon", "delta", "unit", "relation",
    "adversary", "central", "trusted", "scores", "runs", "bytes", "messages", "cpu_seconds",
    "n_participants", "study",
}  # fmt: skip


def compare(study: Study = STUDY, split: Split = SPLIT, **options: Any) -> dict[str, Any]:
    on_progress = options.pop("on_progress", lambda: None)
    chosen = {"epsilons": [1.0], "repeats": 2, "seed": SEED, "n_holders": 4, **options}
    return compare_study(study, split, ComparisonOptions(**chosen), on_progress)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return compare()


def named(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in result["entries"]}


def test_comparison_has_all_alternatives_with_all_fields(found: dict[str, Any]) -> None:
    assert [entry["name"] for entry in found["entries"]] == [
        way.name for way in ALTERNATIVES
    ] and found["left_out"] == []
    assert all(entry.keys() == KEYS for entry in found["entries"])
    assert json.loads(json.dumps(found, allow_nan=False)).keys() == found.keys()
    assert (found["title"], found["digest"], found["short"]) == (
        "Sleep",
        Manifest(STUDY).digest.hex(),
        Manifest(STUDY).short_digest,
    )
    assert (
        found["rows"] == {"asked": N, "unseen": 300, "declared": N}
        and found["compared"]
        and found["simulated"]
    )
    assert "not on one scale" in found["remark"]


@pytest.mark.parametrize("way", ALTERNATIVES, ids=lambda way: way.name)
def test_entry_has_the_scores_of_a_simulation_of_its_study(found: dict[str, Any], way: Any) -> None:
    entry, study = named(found)[way.name], derive_study(way, STUDY, 1.0, 4)
    assert parse_content(entry["study"]) == study
    outcomes = [
        run(RunTask(make_simulation_params(study), SEED, repeat), SPLIT) for repeat in range(2)
    ]
    for told, outcome in zip(entry["runs"], outcomes, strict=True):
        assert told == pytest.approx(
            asdict(outcome.scores), abs=0.01
        )  # one thread adds up in another order than several
    values = [told["accuracy"] for told in entry["runs"]]
    assert entry["scores"]["accuracy"]["value"] == pytest.approx(np.mean(values))
    assert entry["scores"]["accuracy"]["error"] == pytest.approx(
        np.std(values, ddof=1) / np.sqrt(2)
    )
    assert entry["n_participants"] == outcomes[0].n_participants and entry["cpu_seconds"] > 0


def test_entries_have_their_own_unit_relation_and_adversary(found: dict[str, Any]) -> None:
    entries = named(found)
    for entry in found["entries"]:
        total = make_plan(parse_content(entry["study"])).total_loss
        assert (entry["epsilon"], entry["delta"]) == (total.epsilon, total.delta)
        assert (entry["unit"], entry["relation"], entry["adversary"]) == (
            total.scope.unit,
            total.scope.relation,
            total.scope.adversary,
        )
    assert {(entry["unit"], entry["relation"]) for entry in found["entries"]} == {
        ("person", "replace"), ("update", "replace"), ("record", "add-remove"),
    }  # fmt: skip
    crowd = entries["AnonML plus, shuffled"]["central"]
    assert (
        0 < crowd["epsilon"] < entries["AnonML plus, shuffled"]["epsilon"]
        and crowd["delta"] == 1e-6
    )
    assert crowd["adversary"] == "those who see the shuffled batches only"
    assert [name for name, entry in entries.items() if entry["central"] is not None] == [
        "AnonML plus, shuffled"
    ]


def test_entries_state_who_must_be_trusted(found: dict[str, Any]) -> None:
    trusted = {name: entry["trusted"] for name, entry in named(found).items()}
    assert {
        trusted[name] for name in ("AnonML plus, local", "AnonML paper, local", "DDML plus, local")
    } == {"nobody"}
    assert (
        "a relay" in trusted["AnonML plus, shuffled"]
        and "90 % of the people" in trusted["AnonML plus, shuffled"]
    )
    assert trusted["PFDS plus, local"] == "each holder, with the rows that it has; nobody else"
    assert (
        trusted["SDQ paper, local (SuLQ)"]
        == "each database, with the rows that it has; nobody else"
    )
    assert "at most 1 of the 4 databases may help the miner" in trusted["SDQ paper, secure sums"]
    assert (
        "committee of 3" in trusted["SDQ plus, secure sums, tree"]
        and "committee" not in trusted["SDQ plus, secure sums, naive Bayes"]
    )
    assert "drop" not in " ".join(trusted.values()), (
        "what happens to the study where some drop out is not a matter of trust"
    )


def test_message_volume_is_null_only_if_it_is_unknown(
    found: dict[str, Any],
) -> None:
    unknown = {
        name
        for name, entry in named(found).items()
        if entry["bytes"] is None or entry["messages"] is None
    }
    assert unknown == {"SDQ plus, secure sums, tree"}


def test_baselines_are_those_of_the_study_on_the_same_rows(found: dict[str, Any]) -> None:
    told = score_baselines(make_simulation_params(STUDY), SPLIT)
    assert found["yardsticks"] == {
        name: pytest.approx(asdict(told[name])) for name in ("most_common", "without_privacy")
    }
    assert found["measure"] == "accuracy"


def test_settings_are_the_differences_from_the_study(found: dict[str, Any]) -> None:
    entries = named(found)
    assert entries["AnonML plus, local"]["settings"] == {}
    sums = entries["SDQ plus, secure sums, naive Bayes"]["settings"]
    assert (
        sums["protocol"] == "sdq"
        and sums["sdq.n_databases"] == 4
        and "label" not in sums
        and "privacy.epsilon" not in sums
    )


def test_comparison_is_the_same_in_several_processes_and_reports_progress(
    found: dict[str, Any],
) -> None:
    steps: list[int] = []
    again = compare(jobs=2, on_progress=lambda: steps.append(1))
    assert [entry["runs"] for entry in again["entries"]] == [
        entry["runs"] for entry in found["entries"]
    ]
    assert len(steps) == count_steps(STUDY, [1.0], 2) == 2 * len(ALTERNATIVES)


def test_several_epsilons_follow_each_other_and_one_run_has_no_error() -> None:
    result = compare(epsilons=[0.5, 2.0], repeats=1)
    assert [entry["epsilon"] for entry in result["entries"]] == pytest.approx(
        [0.5] * len(ALTERNATIVES) + [2.0] * len(ALTERNATIVES), rel=1e-5
    )
    assert all(entry["scores"]["accuracy"]["error"] is None for entry in result["entries"])


def test_numeric_label_is_measured_by_errors_and_classifiers_are_left_out() -> None:
    label = {"name": "pain", "range": [0.0, 10.0]}
    study = parse_study({**CONTENT, "protocol": "ddml", "label": label})
    pains = PEOPLE.chances * 10, OTHERS.chances * 10
    steps: list[int] = []
    result = compare(
        study,
        replace(SPLIT, train_labels=pains[0], test_labels=pains[1]),
        repeats=1,
        on_progress=lambda: steps.append(1),
    )
    assert len(steps) == count_steps(study, [1.0], 1), "what is left out is over too"
    assert result["measure"] == "rmse" and set(result["yardsticks"]) == {
        "mean_label",
        "without_privacy",
    }
    assert {entry["protocol"] for entry in result["entries"]} == {"ddml", "pfds"}
    assert {one["why"] for one in result["left_out"]} == {
        f"{name} predicts categories, not a number." for name in ("anonml", "sdq")
    }
    assert len(result["left_out"]) == 7


def test_people_with_several_rows_become_devices_and_exclude_anonml() -> None:
    data = {"person": "who", "max_rows_per_person": 2}
    study = parse_study(
        {
            **CONTENT,
            "protocol": "sdq",
            "data": data,
            "sdq": {"n_databases": 4},
            "participation": {"minimum": 4, "size": N},
        }
    )
    whose = np.arange(N) // 2
    held = replace(SPLIT, people=whose, holders=whose % 4, n_holders=4)
    result = compare(study, held, repeats=2, n_holders=None)
    entries = named(result)
    assert (
        entries["DDML plus, local"]["n_participants"] == N // 2
        and entries["SDQ paper, secure sums"]["unit"] == "person"
    )
    assert {one["name"] for one in result["left_out"]} == {
        way.name for way in ALTERNATIVES if way.protocol == "anonml"
    }
    assert "up to 2" in result["left_out"][0]["why"]
    ddml = parse_content(entries["DDML plus, local"]["study"])
    rows = replace(SPLIT, holders=whose, people=whose)
    assert entries["DDML plus, local"]["runs"][0] == pytest.approx(
        asdict(run(RunTask(make_simulation_params(ddml), SEED), rows).scores), abs=0.01
    )
    alone = replace(held, people=np.arange(N))
    assert "AnonML plus, local" in named(compare(study, alone, repeats=1, n_holders=None))


def test_number_of_holders_is_that_of_the_table() -> None:
    result = compare(split=replace(SPLIT, holders=np.arange(N) % 5, n_holders=5), repeats=1)
    assert {
        entry["n_participants"]
        for entry in result["entries"]
        if entry["protocol"] in ("sdq", "pfds")
    } == {5}
    assert named(result)["DDML plus, local"]["n_participants"] == N


def test_alternative_that_fits_some_epsilons_is_left_out_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = comparing.make_plan

    def plan(study: Study) -> Any:
        if study.protocol == "ddml" and study.privacy.epsilon == 0.5:
            raise ShoalError("PLAN-001", "A release of this study cannot be made.")
        return honest(study)

    monkeypatch.setattr(comparing, "make_plan", plan)
    result = compare(epsilons=[0.5, 1.0], repeats=1)
    assert result["left_out"] == [
        {"name": "DDML plus, local, epsilon 0.5", "why": "A release of this study cannot be made."}
    ]
    assert len(result["entries"]) == 2 * len(ALTERNATIVES) - 1


def test_compare_rejects_invalid_options_before_it_runs() -> None:
    with pytest.raises(UsageError, match="--jobs 0"):
        compare(jobs=0)
