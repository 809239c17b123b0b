"""What a study of DDML asks of its coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.protocols.ddml.spam import calibrate
from shoal.study.ddml import filter_of, params_of
from shoal.study.spec import Study


def study(**settings: Any) -> Study:
    return Study(
        title="Naps",
        purpose="Who naps?",
        contact="a@example.org",
        protocol="ddml",
        label={"name": "naps", "values": ["no", "yes"]},
        feature=[{"name": "age", "range": [0, 120]}],
        privacy={"epsilon": 4.0},
        participation={"minimum": 10, "size": 10_000},
        ddml={"n_instances": 7, "merge": "discard", **settings},
    )


def test_the_filter_is_calibrated_for_as_many_updates_under_way_as_there_are_instances() -> None:
    spec = study()
    params = params_of(spec)
    made = filter_of(spec)
    assert made.params == params
    assert made.thresholds == calibrate(params, 7) == filter_of(spec, 7).thresholds
    assert made.thresholds != calibrate(params, 0) == filter_of(spec, 0).thresholds


def test_a_study_may_set_the_largest_deviation() -> None:
    own, calibrated = filter_of(study(spam_threshold=9.5)).thresholds, filter_of(study()).thresholds
    assert own.largest == 9.5 != calibrated.largest
    assert own.rms == pytest.approx(calibrated.rms)
