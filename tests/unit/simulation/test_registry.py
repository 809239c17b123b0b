"""The table of simulated protocols dispatches to each protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.data.tables import read_table_file
from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.params import AnonMLPlusParams
from shoal.protocols.ddml.params import DDMLParams
from shoal.protocols.pfds.params import PFDSParams
from shoal.protocols.sdq.params import SDQParams
from shoal.simulation import anonml, ddml, pfds, sdq
from shoal.simulation.registry import (
    describe_params,
    get_simulated,
    make_simulation_params,
    run,
    score_baselines,
)
from shoal.simulation.run import RunTask, split_rows
from shoal.study.loader import parse_study_text
from shoal.study.starters import make_example_csv, read_starter


def test_make_params_returns_the_parameters_of_each_protocol() -> None:
    assert isinstance(
        make_simulation_params(parse_study_text(read_starter("anonml"))), AnonMLPlusParams
    )
    params = make_simulation_params(parse_study_text(read_starter("ddml")))
    assert isinstance(params, DDMLParams) and describe_params(params) == ddml.describe_params(
        params
    )
    sums = make_simulation_params(parse_study_text(read_starter("sdq")))
    assert isinstance(sums, SDQParams) and describe_params(sums) == sdq.describe_params(sums)
    shared = make_simulation_params(parse_study_text(read_starter("pfds")))
    assert isinstance(shared, PFDSParams) and describe_params(shared) == pfds.describe_params(
        shared
    )
    plus = make_simulation_params(parse_study_text(read_starter("anonml")))
    assert isinstance(plus, AnonMLPlusParams) and describe_params(plus) == anonml.describe_params(
        plus
    )


@pytest.mark.parametrize(
    ("protocol", "module"), [("anonml", anonml), ("ddml", ddml), ("sdq", sdq), ("pfds", pfds)]
)
def test_run_calls_the_simulation_of_each_protocol(
    protocol: str, module: Any, tmp_path: Path
) -> None:
    study = parse_study_text(read_starter(protocol))
    (tmp_path / "rows.csv").write_text(make_example_csv(study, 200, SeededEntropy(1)))
    split, params = (
        split_rows(study.schema(), read_table_file(str(tmp_path / "rows.csv")), 1),
        make_simulation_params(study),
    )
    assert score_baselines(params, split) == module.score_baselines(params, split)
    assert run(RunTask(params, 1), split) == module.run(RunTask(params, 1), split)


def test_protocol_without_members_derives_no_keys() -> None:
    study = parse_study_text(read_starter("ddml"))
    assert get_simulated(study).list_derived_keys(study) == frozenset()
