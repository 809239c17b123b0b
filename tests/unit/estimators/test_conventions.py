"""Estimators in scikit-learn's pipelines, cross-validation, searches and displays."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import VotingClassifier
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from shoal import (
    AnonMLClassifier,
    Categorical,
    DDMLClassifier,
    Numeric,
    PFDSClassifier,
    Schema,
    SDQNaiveBayesClassifier,
    SDQTreeClassifier,
)
from shoal.estimators.inputs import HoldersDealtWarning

SCHEMA = Schema(
    [
        Numeric("age", 0, 100, bins=[30, 65], missing=False),
        Numeric("height", 0, 2, bins=[1], missing=False),
    ],
    label=Categorical("retired", ["no", "yes"], missing=False),
)
ROWS = np.column_stack([np.arange(3000) % 101, np.arange(3000) % 7 / 4])
LABELS = np.where(ROWS[:, 0] > 65, "yes", "no")
SITES = np.array(["north", "east", "south", "west", "centre"])[np.arange(3000) % 5]
HELD = [SDQTreeClassifier, SDQNaiveBayesClassifier, PFDSClassifier]


@pytest.fixture(autouse=True)
def routing() -> Iterator[None]:
    with config_context(enable_metadata_routing=True):
        yield


@pytest.mark.parametrize("kind", HELD)
def test_cross_validation_routes_holders_with_rows(kind: type) -> None:
    estimator = kind(epsilon=2.0, schema=SCHEMA, random_state=0).set_fit_request(holders=True)
    # Rows without holders would be assigned at random with a warning, which is an error here.
    assert cross_val_score(estimator, ROWS, LABELS, params={"holders": SITES}).min() > 0.9


def test_only_holders_of_a_fold_take_part() -> None:
    estimator = PFDSClassifier(epsilon=2.0, schema=SCHEMA, random_state=0).set_fit_request(
        holders=True
    )
    sites = np.where(np.arange(3000) < 1500, "first", "second")
    search = GridSearchCV(
        estimator,
        {"epsilon": [1.0, 2.0]},
        cv=[(np.arange(1500), np.arange(1500, 3000))],
        refit=False,
    )
    search.fit(ROWS, LABELS, holders=sites)
    alone = clone(estimator).fit(ROWS[:1500], LABELS[:1500], holders=sites[:1500])
    assert alone.sharers_ == ("first",)
    score = alone.score(ROWS[1500:], LABELS[1500:])
    assert search.cv_results_["mean_test_score"][1] == pytest.approx(score)


def test_holders_without_routing_request_raise_an_error() -> None:
    with pytest.raises(UnsetMetadataPassedError, match="holders"):
        cross_val_score(SDQTreeClassifier(schema=SCHEMA), ROWS, LABELS, params={"holders": SITES})


def test_pipeline_routes_holders_and_holder() -> None:
    sharing = (
        PFDSClassifier(epsilon=2.0, schema=SCHEMA, random_state=0)
        .set_fit_request(holders=True)
        .set_predict_request(holder=True)
    )
    pipeline = make_pipeline(FunctionTransformer(), sharing).fit(ROWS, LABELS, holders=SITES)
    expected = clone(sharing).fit(ROWS, LABELS, holders=SITES).predict(ROWS, holder="south")
    assert (pipeline.predict(ROWS, holder="south") == expected).all()


def test_pipeline_transforms_rows_before_the_estimator() -> None:
    halves = ColumnTransformer(
        [("age", FunctionTransformer(lambda age: age / 2), [0])], remainder="passthrough"
    )
    schema = Schema(
        [Numeric("age", 0, 50, bins=[32.5], missing=False), SCHEMA.features[1]], label=SCHEMA.label
    )
    pipeline = make_pipeline(halves, AnonMLClassifier(epsilon=4.0, schema=schema, random_state=0))
    assert cross_val_score(pipeline, ROWS, LABELS).min() > 0.9


def test_classifier_works_in_voting_and_calibration() -> None:
    # A vote numbers the classes before its members see them.
    schema = Schema(SCHEMA.features, label=Categorical("retired", ["0", "1"], missing=False))
    private, labels = (
        AnonMLClassifier(epsilon=4.0, schema=schema, random_state=0),
        (LABELS == "yes").astype(int),
    )
    voting = VotingClassifier(
        [("private", private), ("linear", LogisticRegression())], voting="soft"
    ).fit(ROWS, labels)
    assert voting.score(ROWS, labels) > 0.9
    assert CalibratedClassifierCV(private, cv=3).fit(ROWS, labels).score(ROWS, labels) > 0.9


def test_unfitted_estimator_shows_that_nothing_was_spent() -> None:
    estimator = AnonMLClassifier(epsilon=2.0)
    assert repr(estimator) == "AnonMLClassifier(epsilon=2.0)"
    assert "nothing was spent" in estimator._repr_html_()


def test_fitted_estimator_shows_its_guarantee_with_scope() -> None:
    fitted = AnonMLClassifier(epsilon=2.0, schema=SCHEMA, random_state=0).fit(ROWS, LABELS)
    line = "# fitted, simulated: epsilon 2.0, delta 0 (unit person, replace, against everyone)"
    assert repr(fitted).splitlines()[-1] == line
    assert fitted.privacy_.to_html() in fitted._repr_html_()
    assert fitted._repr_mimebundle_()["text/plain"] == repr(fitted)


def test_unit_weight_shows_guarantee_of_everything_first() -> None:
    fitted = DDMLClassifier(epsilon=4.0, unit="weight", schema=SCHEMA, random_state=0).fit(
        ROWS, LABELS
    )
    everything = fitted.privacy_.everything[0]
    assert everything > 4
    assert f"epsilon {everything} for everything sent; epsilon 4.0, delta 0 (unit weight," in repr(
        fitted
    )


def test_estimator_without_noise_shows_no_privacy() -> None:
    fitted = DDMLClassifier(epsilon=float("inf"), schema=SCHEMA, random_state=0).fit(ROWS, LABELS)
    assert "# NO PRIVACY" in repr(fitted) and "<p>NO PRIVACY" in fitted._repr_html_()
    assert fitted.privacy_._repr_html_() == fitted.privacy_.to_html()


def test_names_are_escaped_in_html_view() -> None:
    class Scripts(HTMLParser):
        found: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag == "img":
                self.found.append(tag)

    schema = Schema(
        [Numeric("<img src=x>", 0, 100, missing=False)],
        label=Categorical("<img src=y>", ["no", "yes"], missing=False),
    )
    fitted = AnonMLClassifier(schema=schema, random_state=0).fit(ROWS[:, :1], LABELS)
    parser = Scripts()
    parser.feed(fitted._repr_html_())
    assert parser.found == []


def test_rows_without_holders_are_assigned_with_a_warning() -> None:
    with pytest.warns(HoldersDealtWarning):
        SDQTreeClassifier(schema=SCHEMA, random_state=0).fit(ROWS, LABELS)
