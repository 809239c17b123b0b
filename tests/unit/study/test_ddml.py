"""The spam filter that a DDML study gives its coordinator."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.protocols.ddml.spam_filter import calibrate_thresholds
from shoal.study.ddml import build_params, make_spam_filter
from shoal.study.spec import Study
from shoal.study.validation import parse_study


def make_study(**settings: Any) -> Study:
    return parse_study(
        {
            "title": "Naps",
            "purpose": "Who naps?",
            "contact": "a@example.org",
            "protocol": "ddml",
            "label": {"name": "naps", "values": ["no", "yes"]},
            "feature": [{"name": "age", "range": [0, 120]}],
            "privacy": {"epsilon": 4.0},
            "participation": {"minimum": 10, "size": 10_000},
            "ddml": {"n_instances": 7, "merge": "discard", **settings},
        }
    )


def test_spam_filter_is_calibrated_for_one_update_per_instance() -> None:
    spec = make_study()
    params = build_params(spec)
    made = make_spam_filter(spec)
    assert made.params == params
    assert (
        made.thresholds == calibrate_thresholds(params, 7) == make_spam_filter(spec, 7).thresholds
    )
    assert (
        made.thresholds != calibrate_thresholds(params, 0) == make_spam_filter(spec, 0).thresholds
    )


def test_study_may_set_the_largest_deviation_of_the_spam_filter() -> None:
    own, calibrated = (
        make_spam_filter(make_study(spam_threshold=9.5)).thresholds,
        make_spam_filter(make_study()).thresholds,
    )
    assert own.largest == 9.5 != calibrated.largest
    assert own.rms == pytest.approx(calibrated.rms)
