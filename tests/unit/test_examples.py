"""The example studies: valid, documented, and without warnings about their results."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from shoal.cli.arguments import read_table
from shoal.cli.check import check, check_table
from shoal.cli.main import run
from shoal.data.schema import Categorical, Numeric, Text
from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.params import AnonMLPaperParams, AnonMLPlusParams
from shoal.study.anonml import build_params
from shoal.study.ddml import build_params as ddml_params
from shoal.study.loader import load_study, parse_study_text
from shoal.study.pfds import build_params as pfds_params
from shoal.study.plan import make_plan
from shoal.study.sdq import build_params as sdq_params
from shoal.study.starters import make_example_csv

EXAMPLES = Path(__file__).parents[2] / "examples"
WARNINGS = {
    "ddml-known": "protects almost nothing",
    "adult-pfds-paper": "The paper's trees are mostly noise at such figures",
}
"""Warnings of two examples that follow their papers.

One protects each weight separately, and the other has small leaves that are noise.
"""
STUDIES = sorted(path.stem for path in EXAMPLES.glob("*.toml"))

SHARED = ("adult-pfds", "adult-pfds-sums", "adult-pfds-paper", "bike-pfds")


@pytest.mark.parametrize("name", STUDIES)
def test_example_is_valid_without_warnings(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(EXAMPLES / f"{name}.toml", json=True)
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    expected = WARNINGS.get(name)
    assert len(warnings) == (expected is not None)
    assert all(expected in warning for warning in warnings)


@pytest.mark.parametrize("name", STUDIES)
def test_example_is_documented(name: str) -> None:
    assert f"`{name}.toml`" in (EXAMPLES / "README.md").read_text()
    assert (EXAMPLES / f"{name}.toml").read_text().startswith("# ")


def test_anonml_examples_have_chosen_and_declared_cuts() -> None:
    plain, declared = (
        build_params(load_study(EXAMPLES / f"{name}.toml")) for name in ("adult", "adult-declared")
    )
    assert isinstance(plain, AnonMLPlusParams) and isinstance(declared, AnonMLPlusParams)
    assert plain.schema.names == declared.schema.names and len(plain.schema.names) == 12
    assert len(plain.unbinned) == 5 and declared.unbinned == ()
    assert all(
        feature.n_bins == 2
        for feature in declared.schema.features
        if isinstance(feature, Categorical)
    )


def test_example_cuts_are_near_the_median() -> None:
    schema = load_study(EXAMPLES / "adult-declared.toml").schema()
    numbers = [feature for feature in schema.features if isinstance(feature, Numeric)]
    middle = {number.name: number.bins[len(number.bins) // 2] for number in numbers if number.bins}
    assert middle == {
        "age": 35,
        "education_num": 12,
        "capital_gain": 5000,
        "capital_loss": 1500,
        "hours_per_week": 40,
    }


def test_one_anonml_example_is_of_the_paper() -> None:
    paper = build_params(load_study(EXAMPLES / "adult-paper.toml"))
    assert isinstance(paper, AnonMLPaperParams)
    assert (paper.n_partitions, paper.subset_size, paper.n_subsets, paper.n_features) == (
        5,
        3,
        2,
        11,
    )
    assert len(paper.unbinned) == 5 and paper.n_releases == 7


def test_examples_cover_missing_values_and_several_classes() -> None:
    oulad, nursery = (
        build_params(load_study(EXAMPLES / f"{name}.toml")) for name in ("oulad", "nursery")
    )
    missing = [feature.name for feature in oulad.schema.features if feature.missing]
    assert missing == ["date_registration", "mean_score_d60", "mean_lead_days_d60", "imd_band"]
    assert oulad.n_features == 15 and nursery.n_labels == 5


def test_one_ddml_example_has_known_weights_of_the_paper() -> None:
    params = ddml_params(load_study(EXAMPLES / "ddml-known.toml"))
    assert (params.variant, params.merge, params.averaging, params.centred) == (
        "paper",
        "discard",
        False,
        False,
    )
    assert (
        params.n_weights,
        params.n_instances,
        params.rates.learning_rate,
        params.rates.clip,
    ) == (33, 30, 0.005, 1.0)
    assert len(params.crosses) == 10
    assert params.design.names[:9] == (
        "constant",
        "B = 1",
        "E1 = B",
        "E1 = C",
        "E2 = b",
        "E2 = c",
        "E2 = d",
        "D",
        "I",
    )
    assert {"B = 1 x E1 = B", "E1 = C x E2 = d", "B = 1 x D", "D x I"} < set(params.design.names)


def test_known_weights_are_scaled_and_protected_per_weight() -> None:
    study = load_study(EXAMPLES / "ddml-known.toml")
    params, label = ddml_params(study), make_plan(study).make_statement()
    row = {
        "B": np.array([0]),
        "E1": np.array([0]),
        "E2": np.array([0]),
        "D": np.array([3.0]),
        "I": np.array([1.0]),
    }
    inputs = dict(
        zip(
            params.design.names,
            params.design.make_inputs(row).multiply(np.eye(params.n_weights))[0],
            strict=True,
        )
    )
    assert (inputs["D"], inputs["I"], inputs["D x I"]) == (1, 0.25, 0.25)
    assert label.epsilon == pytest.approx(math.log(32), abs=1e-4) and label.everything == (
        pytest.approx(33 * label.epsilon),
        0,
    )


def test_one_ddml_example_ranks_by_texts_and_their_cross() -> None:
    params = ddml_params(load_study(EXAMPLES / "ranking.toml"))
    assert params.n_weights == 1 + 20_000 + 10_000 + 20_000 and params.schema.names == ()
    assert params.schema.texts == (Text("typed", 20_000), Text("tags", 10_000, missing=False))


def test_phishing_example_has_one_weight_per_feature() -> None:
    params = ddml_params(load_study(EXAMPLES / "phishing-ddml.toml"))
    assert (
        params.n_weights == 31
        and params.schema.names == load_study(EXAMPLES / "phishing.toml").schema().names
    )


def test_adult_examples_have_same_features_in_both_protocols() -> None:
    assert (
        load_study(EXAMPLES / "adult-ddml.toml").schema()
        == load_study(EXAMPLES / "adult-declared.toml").schema()
    )
    assert ddml_params(load_study(EXAMPLES / "adult-ddml.toml")).n_weights == 23


def test_some_examples_are_sdq_with_secure_sums() -> None:
    plus, paper, adult = (
        sdq_params(load_study(EXAMPLES / f"{name}.toml"))
        for name in ("nursery-sdq", "nursery-sdq-paper", "adult-sdq")
    )
    assert plus.schema == paper.schema == load_study(EXAMPLES / "nursery.toml").schema()
    assert (plus.n_databases, plus.max_colluders, plus.n_honest, plus.choice) == (10, 3, 7, "mpc")
    assert (paper.variant, paper.noise, paper.depth, paper.minimum) == (
        "paper",
        "two-selected",
        4,
        10,
    )
    assert len(adult.arities) == 11 and (adult.minimum, adult.n_honest) == (9, 6)


def test_some_examples_are_pfds() -> None:
    local, sums, paper, bike = (
        pfds_params(load_study(EXAMPLES / f"{name}.toml")) for name in SHARED
    )
    assert (
        local.schema == sums.schema == paper.schema
        and local.schema.names == load_study(EXAMPLES / "adult-sdq.toml").schema().names
    )
    assert all(
        feature.bins is None for feature in local.schema.features if isinstance(feature, Numeric)
    )
    assert (local.variant, local.trust, local.n_holders) == ("plus", "local", 50)
    assert (sums.trust, sums.delta, sums.n_honest) == ("secure-sum", 1e-6, 40)
    assert (paper.variant, paper.max_depth, paper.n_levels, paper.projection) == (
        "paper",
        4,
        3,
        True,
    )
    assert bike.is_number and bike.delta == 0 and len(bike.arities) == 12


@pytest.mark.parametrize("name", SHARED)
def test_examples_run_on_generated_rows(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = load_study(EXAMPLES / f"{name}.toml")
    (tmp_path / "rows.csv").write_text(make_example_csv(study, 600, SeededEntropy(name)))
    assert (
        run(
            [
                "simulate",
                str(EXAMPLES / f"{name}.toml"),
                "--data",
                str(tmp_path / "rows.csv"),
                "--repeats",
                "1",
                "--json",
            ]
        )
        == 0
    )
    [point] = json.loads(capsys.readouterr().out)["points"]
    assert (
        point["people"] == point["n_holders"]
        and point["n_rows"] == 450
        and point["at_home"]["n_holders"] == min(20, point["n_holders"])
    )


def test_label_of_two_selected_databases_names_leakage() -> None:
    label = " ".join(
        str(make_plan(load_study(EXAMPLES / "nursery-sdq-paper.toml")).make_statement())
        .replace("│", " ")
        .split()
    )
    assert "no database helps the miner" in label and "chance 6.67 %" in label


@pytest.mark.parametrize(
    "name",
    [
        "adult-ddml",
        "phishing-ddml",
        "ddml-known",
        "ranking",
        "nursery-sdq",
        "nursery-sdq-paper",
        "adult-sdq",
        *SHARED,
    ],
)
def test_generated_rows_fit_schema(name: str, tmp_path: Path) -> None:
    study = load_study(EXAMPLES / f"{name}.toml")
    (tmp_path / "rows.csv").write_text(make_example_csv(study, 50, SeededEntropy(name)))
    assert check_table(study, str(tmp_path / "rows.csv")) == {"rows": 50, "left_out": 0}


def test_same_rows_serve_different_studies(tmp_path: Path) -> None:
    rows = [
        ("1", "1", "A", "c", 2.18, 3),
        ("0", "1", "B", "a", 0.89, 4),
        ("1", "0", "C", "b", 0.23, 0),
        ("1", "0", "C", "d", 1.30, 1),
    ]
    with sqlite3.connect(tmp_path / "device.db") as device:
        device.execute("CREATE TABLE rows (O TEXT, B TEXT, E1 TEXT, E2 TEXT, D REAL, I INTEGER)")
        device.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)", rows)
    device.close()
    text = (EXAMPLES / "ddml-known.toml").read_text()
    all_of_it = parse_study_text(text)
    # Another study: of D, I and E1, with one cross, predicting B.
    other = (
        text.replace('name = "B"', 'name = "x"')
        .replace('name = "O"', 'name = "B"')
        .replace('name = "x"', 'name = "O"')
    )
    other = other[: other.index("crosses = [")] + 'crosses = [["D", "E1"]]\n'
    kept = [
        block
        for block in other.split("[[feature]]")
        if not block.startswith(('\nname = "O"', '\nname = "E2"'))
    ]
    some_of_it = parse_study_text("[[feature]]".join(kept))
    assert some_of_it.schema().names == ("E1", "D", "I") and some_of_it.label.name == "B"
    source = f"{tmp_path / 'device.db'}#rows"
    widths = []
    for study in (all_of_it, some_of_it):
        assert check_table(study, source) == {"rows": 4, "left_out": 0}
        schema, columns = study.schema(), read_table(source)
        inputs = ddml_params(study).design.make_inputs(schema.encode(columns))
        widths.append((len(inputs), inputs.width, schema.encode_label(columns).tolist()))
    assert widths == [(4, 33, [1, 0, 1, 1]), (4, 7, [1, 1, 0, 0])]
