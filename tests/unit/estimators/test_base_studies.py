"""The study that an estimator simulates, and its statement."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.data.schema import Categorical, Numeric, Schema, Text
from shoal.estimators.base import NoGuarantee, make_simulated_statement, make_study
from shoal.estimators.inputs import EstimatorError
from shoal.study.label import SIMULATED

LABEL = Categorical("ill", ["no", "yes"], groups={"a": ["no"], "b": ["yes"]})
SCHEMA = Schema(
    [
        Numeric("age", np.int64(17), np.float32(90)),
        Numeric("size", 0, 2, bins=[np.float64(0.5), 1], missing=False),
        Categorical("kind", ["u", "v", "w"], groups={"y": ["u"], "x": ["v", "w"]}),
    ],
    LABEL,
)
SETTINGS: dict[str, Any] = {"protocol": "anonml", "privacy": {"epsilon": 1.0}}


def unwrap_text(text: object) -> str:
    return " ".join(str(text).replace("│", " ").split())


def test_make_study_copies_the_schema() -> None:
    study = make_study(SCHEMA, 500, SETTINGS)
    features = study.schema().features
    assert features == SCHEMA.features
    assert study.schema().label == Categorical("ill", ("no", "yes"), missing=False)
    assert (study.participation.size, study.participation.minimum) == (500, 500)


def test_make_study_includes_text_features() -> None:
    texts = [Text("said", 100, 2, missing=False), Text("heard")]
    study = make_study(
        Schema(SCHEMA.features, LABEL, texts),
        500,
        {**SETTINGS, "protocol": "ddml", "ddml": {"crosses": (("age", "said"),)}},
    )
    assert study.schema().texts == tuple(texts) and study.schema().features == SCHEMA.features
    assert (
        "from 5 features of 500 peers" in study.purpose
        and study.ddml is not None
        and study.ddml.crosses == (("age", "said"),)
    )


def test_make_study_accepts_numpy_numbers() -> None:
    settings = {"protocol": "anonml", "variant": "paper", "privacy": {"epsilon": np.float32(2)}}
    tables = {"n_partitions": np.int64(2), "n_subsets": np.int32(1), "subset_size": 1}
    study = make_study(SCHEMA, np.int64(500), {**settings, "anonml": tables})  # type: ignore[arg-type]
    assert (
        study.anonml is not None and study.anonml.n_partitions == 2 and study.privacy.epsilon == 2.0
    )


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        ({"privacy": {"epsilon": -1.0}}, "SPEC-013", "epsilon = -1.0 must be at least"),
        ({"variant": "best"}, "SPEC-013", 'variant = "best" must be'),
        ({"trust": "secure-sum"}, "SPEC-020", "secure-sum"),
        ({"participation": {"honest_share": 0.5}}, "SPEC-022", "honest_share"),
    ],
)
def test_make_study_explains_invalid_settings(
    settings: dict[str, Any], code: str, words: str
) -> None:
    with pytest.raises(EstimatorError, match=words) as error:
        make_study(SCHEMA, 500, {**SETTINGS, **settings})
    assert error.value.code == code and error.value.fix


def test_make_study_rejects_schema_without_label() -> None:
    with pytest.raises(EstimatorError, match="no label"):
        make_study(Schema(SCHEMA.features), 500, SETTINGS)


def test_statement_of_an_estimator_is_simulated() -> None:
    statement = make_simulated_statement(
        make_study(SCHEMA, 500, SETTINGS), bytes(32), ["the weather"]
    )
    assert (
        statement.simulated
        and statement.not_covered[0] == "the weather"
        and len(statement.not_covered) > 1
    )
    assert SIMULATED in unwrap_text(statement) and "epsilon 1.0, delta 0" in unwrap_text(statement)


def test_no_guarantee_states_infinite_epsilon() -> None:
    assert (
        "no guarantee" in str(NoGuarantee())
        and SIMULATED in str(NoGuarantee())
        and NoGuarantee().epsilon == float("inf")
    )
