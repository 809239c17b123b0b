"""Which protocols are simulated, and that each is asked for its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shoal.entropy import SeededEntropy
from shoal.protocols.anonml.params import Plus
from shoal.protocols.ddml.params import Params
from shoal.protocols.pfds.params import Params as PFDSParams
from shoal.protocols.sdq.params import Params as SDQParams
from shoal.sim import anonml, ddml, pfds, sdq
from shoal.sim.protocols import facts, params_for, run, yardsticks
from shoal.sim.runs import Task, split_rows
from shoal.study.load import parse
from shoal.study.templates import example_csv, study_text
from shoal.tables import read


def test_each_protocol_has_its_own_parameters() -> None:
    assert isinstance(params_for(parse(study_text("anonml"))), Plus)
    params = params_for(parse(study_text("ddml")))
    assert isinstance(params, Params) and facts(params) == ddml.facts(params)
    sums = params_for(parse(study_text("sdq")))
    assert isinstance(sums, SDQParams) and facts(sums) == sdq.facts(sums)
    shared = params_for(parse(study_text("pfds")))
    assert isinstance(shared, PFDSParams) and facts(shared) == pfds.facts(shared)
    plus = params_for(parse(study_text("anonml")))
    assert isinstance(plus, Plus) and facts(plus) == anonml.facts(plus)


@pytest.mark.parametrize(("protocol", "module"), [("anonml", anonml), ("ddml", ddml), ("sdq", sdq), ("pfds", pfds)])
def test_each_protocol_runs_its_own(protocol: str, module: Any, tmp_path: Path) -> None:
    study = parse(study_text(protocol))
    (tmp_path / "rows.csv").write_text(example_csv(study, 200, SeededEntropy(1)))
    split, params = split_rows(study.schema(), read(str(tmp_path / "rows.csv")), 1), params_for(study)
    assert yardsticks(params, split) == module.yardsticks(params, split)
    assert run(Task(params, 1), split) == module.run(Task(params, 1), split)
