"""The example studies: each is one, is explained, and gives no reason to doubt its result."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from shoal.cli.check import check, fit_table, read_table
from shoal.cli.main import run
from shoal.domain import Categorical, Numeric, Text
from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.params import Paper, Plus
from shoal.study.anonml import params_of
from shoal.study.ddml import params_of as ddml_params
from shoal.study.load import load, parse
from shoal.study.pfds import params_of as pfds_params
from shoal.study.plan import make_plan
from shoal.study.sdq import params_of as sdq_params
from shoal.study.templates import example_csv

EXAMPLES = Path(__file__).parents[2] / "examples"
DOUBTS = {"ddml-known": ": this protects next to nothing;", "adult-pfds-paper": "The paper's trees are mostly noise at such figures"}
"""Two are as their papers have them: each weight of the one is protected by itself only, and small leaves of the other are noise."""
STUDIES = sorted(path.stem for path in EXAMPLES.glob("*.toml"))

SHARED = ("adult-pfds", "adult-pfds-sums", "adult-pfds-paper", "bike-pfds")


@pytest.mark.parametrize("name", STUDIES)
def test_is_a_study_without_doubts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(EXAMPLES / f"{name}.toml", json=True)
    told = json.loads(capsys.readouterr().out)
    doubt = DOUBTS.get(name)
    assert len(told["warnings"]) == (doubt is not None) and all(doubt in warning for warning in told["warnings"])


@pytest.mark.parametrize("name", STUDIES)
def test_is_explained(name: str) -> None:
    assert f"`{name}.toml`" in (EXAMPLES / "README.md").read_text()
    assert (EXAMPLES / f"{name}.toml").read_text().startswith("# ")


def test_one_knows_nothing_and_one_what_everybody_knows() -> None:
    plain, declared = (params_of(load(EXAMPLES / f"{name}.toml")) for name in ("adult", "adult-declared"))
    assert isinstance(plain, Plus) and isinstance(declared, Plus)
    assert plain.schema.names == declared.schema.names and len(plain.schema.names) == 12
    assert len(plain.unbinned) == 5 and declared.unbinned == ()
    assert all(feature.n_bins == 2 for feature in declared.schema.features if isinstance(feature, Categorical))


def test_the_most_telling_cut_is_in_the_middle() -> None:
    schema = load(EXAMPLES / "adult-declared.toml").schema()
    numbers = [feature for feature in schema.features if isinstance(feature, Numeric)]
    middle = {number.name: number.bins[len(number.bins) // 2] for number in numbers if number.bins}
    assert middle == {"age": 35, "education_num": 12, "capital_gain": 5000, "capital_loss": 1500, "hours_per_week": 40}


def test_one_is_the_papers() -> None:
    paper = params_of(load(EXAMPLES / "adult-paper.toml"))
    assert isinstance(paper, Paper)
    assert (paper.n_partitions, paper.subset_size, paper.n_subsets, paper.n_features) == (5, 3, 2, 11)
    assert len(paper.unbinned) == 5 and paper.n_releases == 7


def test_one_has_missing_values_and_one_several_classes() -> None:
    oulad, nursery = (params_of(load(EXAMPLES / f"{name}.toml")) for name in ("oulad", "nursery"))
    missing = [feature.name for feature in oulad.schema.features if feature.missing]
    assert missing == ["date_registration", "mean_score_d60", "mean_lead_days_d60", "imd_band"]
    assert oulad.n_features == 15 and nursery.n_labels == 5


def test_one_is_the_papers_model_with_known_weights() -> None:
    params = ddml_params(load(EXAMPLES / "ddml-known.toml"))
    assert (params.variant, params.merge, params.averaging, params.centred) == ("paper", "discard", False, False)
    assert (params.n_weights, params.n_instances, params.rates.learning_rate, params.rates.clip) == (33, 30, 0.005, 1.0)
    assert len(params.crosses) == 10
    assert params.design.names[:9] == ("constant", "B = 1", "E1 = B", "E1 = C", "E2 = b", "E2 = c", "E2 = d", "D", "I")
    assert {"B = 1 x E1 = B", "E1 = C x E2 = d", "B = 1 x D", "D x I"} < set(params.design.names)


def test_the_known_weights_are_of_scaled_numbers_and_each_is_protected_by_itself_only() -> None:
    study = load(EXAMPLES / "ddml-known.toml")
    params, label = ddml_params(study), make_plan(study).statement()
    row = {"B": np.array([0]), "E1": np.array([0]), "E2": np.array([0]), "D": np.array([3.0]), "I": np.array([1.0])}
    inputs = dict(zip(params.design.names, params.design.inputs(row).times(np.eye(params.n_weights))[0], strict=True))
    assert (inputs["D"], inputs["I"], inputs["D x I"]) == (1, 0.25, 0.25)
    assert label.epsilon == pytest.approx(math.log(32), abs=1e-4) and label.everything == (pytest.approx(33 * label.epsilon), 0)


def test_one_ranks_by_texts_and_their_cross() -> None:
    params = ddml_params(load(EXAMPLES / "ranking.toml"))
    assert params.n_weights == 1 + 20_000 + 10_000 + 20_000 and params.schema.names == ()
    assert params.schema.texts == (Text("typed", 20_000), Text("tags", 10_000, missing=False))


def test_signs_of_phishing_are_numbers_with_one_weight_each() -> None:
    params = ddml_params(load(EXAMPLES / "phishing-ddml.toml"))
    assert params.n_weights == 31 and params.schema.names == load(EXAMPLES / "phishing.toml").schema().names


def test_adult_is_asked_for_the_same_with_both_protocols() -> None:
    assert load(EXAMPLES / "adult-ddml.toml").schema() == load(EXAMPLES / "adult-declared.toml").schema()
    assert ddml_params(load(EXAMPLES / "adult-ddml.toml")).n_weights == 23


def test_some_are_of_databases_that_sum() -> None:
    plus, paper, adult = (sdq_params(load(EXAMPLES / f"{name}.toml")) for name in ("nursery-sdq", "nursery-sdq-paper", "adult-sdq"))
    assert plus.schema == paper.schema == load(EXAMPLES / "nursery.toml").schema()
    assert (plus.n_databases, plus.max_colluders, plus.n_honest, plus.choice) == (10, 3, 7, "mpc")
    assert (paper.variant, paper.noise, paper.depth, paper.minimum) == ("paper", "two-selected", 4, 10)
    assert len(adult.arities) == 11 and (adult.minimum, adult.n_honest) == (9, 6)


def test_some_are_of_organisations_that_share() -> None:
    local, sums, paper, bike = (pfds_params(load(EXAMPLES / f"{name}.toml")) for name in SHARED)
    assert local.schema == sums.schema == paper.schema and local.schema.names == load(EXAMPLES / "adult-sdq.toml").schema().names
    assert all(feature.bins is None for feature in local.schema.features if isinstance(feature, Numeric))
    assert (local.variant, local.trust, local.n_holders) == ("plus", "local", 50)
    assert (sums.trust, sums.delta, sums.n_honest) == ("secure-sum", 1e-6, 40)
    assert (paper.variant, paper.max_depth, paper.n_levels, paper.projection) == ("paper", 4, 3, True)
    assert bike.is_number and bike.delta == 0 and len(bike.arities) == 12


@pytest.mark.parametrize("name", SHARED)
def test_they_run_on_made_up_rows(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = load(EXAMPLES / f"{name}.toml")
    (tmp_path / "rows.csv").write_text(example_csv(study, 600, SeededEntropy(name)))
    assert run(["simulate", str(EXAMPLES / f"{name}.toml"), "--data", str(tmp_path / "rows.csv"), "--repeats", "1", "--json"]) == 0
    [point] = json.loads(capsys.readouterr().out)["points"]
    assert point["people"] == point["n_holders"] and point["n_rows"] == 450 and point["at_home"]["n_holders"] == min(20, point["n_holders"])


def test_two_selected_databases_say_on_the_label_what_they_give_away() -> None:
    label = " ".join(str(make_plan(load(EXAMPLES / "nursery-sdq-paper.toml")).statement()).replace("│", " ").split())
    assert "if no database tells it anything" in label and "chance 6.67 % both" in label


@pytest.mark.parametrize(
    "name", ["adult-ddml", "phishing-ddml", "ddml-known", "ranking", "nursery-sdq", "nursery-sdq-paper", "adult-sdq", *SHARED]
)
def test_made_up_rows_fit(name: str, tmp_path: Path) -> None:
    study = load(EXAMPLES / f"{name}.toml")
    (tmp_path / "rows.csv").write_text(example_csv(study, 50, SeededEntropy(name)))
    assert fit_table(study, str(tmp_path / "rows.csv")) == {"rows": 50, "left_out": 0}


def test_the_same_rows_serve_different_studies(tmp_path: Path) -> None:
    rows = [("1", "1", "A", "c", 2.18, 3), ("0", "1", "B", "a", 0.89, 4), ("1", "0", "C", "b", 0.23, 0), ("1", "0", "C", "d", 1.30, 1)]
    with sqlite3.connect(tmp_path / "device.db") as device:
        device.execute("CREATE TABLE rows (O TEXT, B TEXT, E1 TEXT, E2 TEXT, D REAL, I INTEGER)")
        device.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)", rows)
    device.close()
    text = (EXAMPLES / "ddml-known.toml").read_text()
    all_of_it = parse(text)
    # Another study: of D, I and E1, with one cross, predicting B.
    other = text.replace('name = "B"', 'name = "x"').replace('name = "O"', 'name = "B"').replace('name = "x"', 'name = "O"')
    other = other[: other.index("crosses = [")] + 'crosses = [["D", "E1"]]\n'
    kept = [block for block in other.split("[[feature]]") if not block.startswith(('\nname = "O"', '\nname = "E2"'))]
    some_of_it = parse("[[feature]]".join(kept))
    assert some_of_it.schema().names == ("E1", "D", "I") and some_of_it.label.name == "B"
    source = f"{tmp_path / 'device.db'}#rows"
    widths = []
    for study in (all_of_it, some_of_it):
        assert fit_table(study, source) == {"rows": 4, "left_out": 0}
        schema, columns = study.schema(), read_table(source)
        inputs = ddml_params(study).design.inputs(schema.encode(columns))
        widths.append((len(inputs), inputs.width, schema.encode_label(columns).tolist()))
    assert widths == [(4, 33, [1, 0, 1, 1]), (4, 7, [1, 1, 0, 0])]
