"""The example studies: each is one, is explained, and gives no reason to doubt its result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.cli.check import check
from shoal.domain import Categorical, Numeric
from shoal.protocols.anonml.params import Paper, Plus
from shoal.study.anonml import params_of
from shoal.study.load import load

EXAMPLES = Path(__file__).parents[2] / "examples"
STUDIES = sorted(path.stem for path in EXAMPLES.glob("*.toml"))


@pytest.mark.parametrize("name", STUDIES)
def test_is_a_study_without_doubts(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(EXAMPLES / f"{name}.toml", json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["warnings"] == []


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
