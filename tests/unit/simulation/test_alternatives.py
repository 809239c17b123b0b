"""Alternatives of a study: settings that stay, settings that follow, and misfits."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import SpecError
from shoal.protocols.sdq.params import compute_default_choice
from shoal.simulation.alternatives import (
    ALTERNATIVES,
    DEFAULT_HOLDERS,
    DELTA,
    HONEST_SHARE,
    Alternative,
    count_members,
    derive_study,
    list_alternatives,
    list_differences,
)
from shoal.study.loader import parse_study_text
from shoal.study.plan import make_plan
from shoal.study.spec import Study
from shoal.study.starters import STARTER_PROTOCOLS, read_starter
from shoal.study.validation import parse_content

BY_NAME = {way.name: way for way in ALTERNATIVES}
SUMS = [way for way in ALTERNATIVES if way.trust == "secure-sum"]


def changed(study: Study, **tables: Any) -> Study:
    content = study.to_content()
    for key, value in tables.items():
        content[key] = {**(content[key] or {}), **value} if isinstance(value, dict) else value
    return parse_content(content)


STUDIES = {protocol: parse_study_text(read_starter(protocol)) for protocol in STARTER_PROTOCOLS}
NUMBERS = [
    feature | {"bins": None, "missing": False}
    for feature in STUDIES["ddml"].to_content()["feature"]
]
PLAIN = changed(STUDIES["ddml"], feature=NUMBERS)
"""Nothing is missing, so that every way fits."""


@pytest.mark.parametrize("way", ALTERNATIVES, ids=lambda way: way.name)
def test_make_alternative_returns_a_study_of_its_kind_at_the_given_epsilon(
    way: Alternative,
) -> None:
    made = derive_study(way, PLAIN, 0.7)
    assert (made.protocol, made.variant, made.trust, made.privacy.epsilon) == (
        way.protocol,
        way.variant,
        way.trust,
        0.7,
    )
    assert (made.sdq.learner if made.sdq else None) == way.learner
    assert made.label == PLAIN.label and [one.name for one in made.feature] == [
        one.name for one in PLAIN.feature
    ]
    assert bool(made.privacy.delta) == way.has_delta
    assert make_plan(made).total_loss.epsilon == pytest.approx(0.7, rel=1e-6)


@pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
def test_alternative_that_is_the_study_changes_only_epsilon(protocol: str) -> None:
    study = STUDIES[protocol]
    [own] = [
        way
        for way in list_alternatives(study)
        if list_differences(study, _or_self(way, study)).keys() == {"privacy.epsilon"}
    ]
    assert (own.protocol, own.variant) == (protocol, "plus") and list_alternatives(
        study
    ) == ALTERNATIVES
    assert list_differences(study, derive_study(own, study, study.privacy.epsilon)) == {}


def _or_self(way: Alternative, study: Study) -> Study:
    try:
        return derive_study(way, study, 0.25)
    except SpecError:
        return study


@pytest.mark.parametrize(
    ("study", "name"),
    [
        (changed(STUDIES["ddml"], privacy={"unit": "weight"}), "DDML plus, this study"),
        (
            changed(STUDIES["sdq"], variant="paper", sdq={"noise": "two-selected", "choice": None}),
            "SDQ paper, this study",
        ),
    ],
)
def test_study_without_a_matching_alternative_comes_first_and_unchanged(
    study: Study, name: str
) -> None:
    own, *others = list_alternatives(study)
    assert (own.name, own.is_given, tuple(others)) == (name, True, ALTERNATIVES)
    made = derive_study(own, study, 0.5)
    assert list_differences(study, made) == {"privacy.epsilon": 0.5}


def test_alternatives_have_no_free_queries() -> None:
    asked = {"features": ("age",), "n_queries": 3, "epsilon_release": 0.5}
    study = changed(STUDIES["sdq"], queries=asked)
    assert all(derive_study(way, study, 1.0).queries is None for way in SUMS)


def test_alternatives_have_the_same_number_of_rows() -> None:
    devices = changed(PLAIN, participation={"minimum": 1000, "size": 5000}, ddml={"batch_size": 4})
    assert derive_study(BY_NAME["AnonML plus, local"], devices, 1.0).participation.size == 20_000
    assert derive_study(BY_NAME["PFDS plus, local"], devices, 1.0).participation.size == 20_000
    assert derive_study(BY_NAME["DDML plus, local"], devices, 1.0).participation.size == 5000
    assert derive_study(BY_NAME["DDML plus, local"], STUDIES["anonml"], 1.0).ddml.batch_size == 1  # type: ignore[union-attr]
    assert derive_study(BY_NAME["DDML plus, local"], STUDIES["sdq"], 1.0).ddml.batch_size == 2  # type: ignore[union-attr]


def test_minimum_of_databases_becomes_a_minimum_of_people() -> None:
    people = derive_study(BY_NAME["AnonML plus, local"], STUDIES["sdq"], 1.0)
    assert (people.participation.minimum, people.participation.size) == (10_000, 20_000)
    few = changed(STUDIES["anonml"], participation={"minimum": 5, "size": 9})
    assert derive_study(BY_NAME["DDML plus, local"], few, 1.0).ddml.n_instances == 5  # type: ignore[union-attr]


def test_shuffled_alternative_uses_the_studys_honest_share_or_a_default() -> None:
    shuffled = BY_NAME["AnonML plus, shuffled"]
    made = derive_study(shuffled, STUDIES["anonml"], 1.0)
    assert (made.privacy.delta, made.participation.honest_share) == (DELTA, HONEST_SHARE)
    own = changed(made, privacy={"delta": 1e-8}, participation={"honest_share": 0.5})
    again = derive_study(shuffled, own, 2.0)
    assert (again.privacy.delta, again.participation.honest_share) == (1e-8, 0.5)
    assert (
        derive_study(BY_NAME["PFDS plus, secure sums with delta"], own, 2.0).privacy.delta == 1e-8
    )
    assert derive_study(BY_NAME["AnonML plus, local"], own, 2.0).participation.honest_share is None


def test_sums_of_both_protocols_have_the_same_holders() -> None:
    sdq = STUDIES["sdq"]
    for way in SUMS:
        made = derive_study(way, sdq, 1.0)
        table = made.sdq or made.pfds
        assert table is not None
        assert (count_members(made), made.participation.minimum, table.max_colluders) == (10, 10, 3)
        assert made.data == sdq.data and made.privacy.unit == "person"
    local = derive_study(BY_NAME["PFDS plus, local"], sdq, 1.0)
    assert local.pfds is not None and local.pfds.max_colluders == 0


@pytest.mark.parametrize(
    "way",
    [way for way in ALTERNATIVES if way.protocol in ("sdq", "pfds")],
    ids=lambda way: way.name,
)
@pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
def test_number_of_holders_is_the_given_one(way: Alternative, protocol: str) -> None:
    study = (
        PLAIN
        if protocol == "ddml"
        else changed(STUDIES[protocol], feature=_never_missing(STUDIES[protocol]))
    )
    assert count_members(derive_study(way, study, 1.0)) == (count_members(study) or DEFAULT_HOLDERS)
    made = derive_study(way, study, 1.0, 6)
    assert count_members(made) == 6
    if way.variant == "plus" and made.sdq is not None and made.sdq.learner == "tree":
        assert made.sdq.choice == compute_default_choice(6, made.sdq.max_colluders)


def _never_missing(study: Study) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in feature.items() if key != "bins"} | {"missing": False}
        for feature in study.to_content()["feature"]
    ]


def test_sum_derived_from_a_local_study_requires_all_holders() -> None:
    # The minimum of local trust may be too small for a sum, of which two lists of survivors must
    # have an honest signer in common.
    assert STUDIES["pfds"].participation.minimum == 15
    assert (
        derive_study(BY_NAME["PFDS plus, secure sums"], STUDIES["pfds"], 1.0).participation.minimum
        == 20
    )


def test_paper_trees_choose_their_own_split_values() -> None:
    made = derive_study(BY_NAME["PFDS paper, local"], PLAIN, 1.0)
    assert made.pfds is not None and made.pfds.max_depth == 3
    binned = changed(PLAIN, feature=[NUMBERS[0] | {"bins": (6.0, 12.0)}, *NUMBERS[1:]])
    assert (
        list_differences(binned, derive_study(BY_NAME["PFDS paper, local"], binned, 1.0))["feature"]
        == "without bins: hour"
    )


@pytest.mark.parametrize(
    ("n_features", "figures"), [(1, (1, 1)), (2, (2, 1)), (3, (2, 1)), (5, (2, 2))]
)
def test_paper_subsets_are_reduced_to_the_number_of_features(
    n_features: int, figures: tuple[int, int]
) -> None:
    features = [{"name": f"f{i}", "values": ("a", "b")} for i in range(n_features)]
    study = changed(STUDIES["anonml"], feature=features)
    made = derive_study(BY_NAME["AnonML paper, local"], study, 1.0).anonml
    assert made is not None and (made.n_subsets, made.subset_size) == figures


@pytest.mark.parametrize(
    ("name", "tables", "why"),
    [
        (
            "AnonML plus, local",
            {"label": {"values": None, "range": (0, 1)}, "ddml": {"link": None}},
            "anonml predicts categories, not a",
        ),
        (
            "SDQ plus, secure sums, tree",
            {"label": {"values": None, "range": (0, 1)}, "ddml": {"link": None}},
            "sdq predicts categories",
        ),
        (
            "PFDS paper, local",
            {"feature": [NUMBERS[0] | {"missing": True}, *NUMBERS[1:]]},
            "hour is a number that may be missing",
        ),
        (
            "PFDS plus, local",
            {"feature": [*NUMBERS, {"name": "words", "buckets": 64}], "ddml": {"crosses": ()}},
            "words is a text",
        ),
    ],
)
def test_alternative_that_does_not_fit_has_a_reason(
    name: str, tables: dict[str, Any], why: str
) -> None:
    study = changed(changed(PLAIN, ddml={"crosses": ()}), **tables)
    with pytest.raises(SpecError) as caught:
        derive_study(BY_NAME[name], study, 1.0)
    assert why in caught.value.what and "\n" not in caught.value.what
    assert derive_study(BY_NAME["DDML plus, local"], study, 1.0).label == study.label


def test_alternative_with_an_impossible_number_of_holders_has_a_reason() -> None:
    with pytest.raises(SpecError) as caught:
        derive_study(BY_NAME["SDQ plus, secure sums, tree"], STUDIES["sdq"], 1.0, 2)
    assert caught.value.what.startswith("n_databases = 2:")
