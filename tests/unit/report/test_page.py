"""The report shows the content of its documents, and no document makes it active."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import SpecError, UsageError
from shoal.report import make_report
from shoal.report.sections.learned import make_tree_section
from shoal.simulation.compare import REMARK
from tests.unit.report.cases import (
    DETAIL_SECTIONS,
    DETAILS,
    HOSTILE,
    Page,
    check_inert,
    make_audit_document,
    make_comparison_document,
    make_point,
    make_result_document,
    make_run_document,
    make_run_with_details,
    parse_pictures,
)

PLAIN = ["headline", "budget", "card", "label", "reproduce"]
"""The sections of any run."""


def list_section_keys(page: Page) -> list[str]:
    return [one.partition("-")[2].partition("-")[2] for one in page.sections]


def find_section(text: str, key: str) -> str:
    """Return a section of the first document, as markup."""
    return text.partition(f'id="part-1-{key}"')[2].partition("</section>")[0]


def test_run_without_details_has_the_plain_sections() -> None:
    page = check_inert(make_report([make_run_document()]))
    assert list_section_keys(page) == PLAIN
    assert "This is a simulation: nothing was sent." in page.text
    links = [given["href"] for name, given in page.tags if name == "a"]
    assert [f"#{one}" for one in page.sections] == [link for link in links if link != "#main"]


@pytest.mark.parametrize("name", DETAILS)
def test_each_detail_adds_its_section(name: str) -> None:
    page = check_inert(make_report([make_run_with_details(name)]))
    assert set(list_section_keys(page)) - set(PLAIN) == {DETAIL_SECTIONS[name]}


def test_sections_are_in_order_and_each_has_a_lead() -> None:
    text = make_report([make_run_with_details(*DETAILS)], [make_audit_document()])
    page = check_inert(text)
    order = [
        "headline",
        "budget",
        "participation",
        "histograms",
        "weights",
        "spread",
        "exposure",
        "released",
        "calibration",
        "audit",
    ]
    assert list_section_keys(page) == [*order, "card", "label", "reproduce"]
    assert sum(given.get("class") == "lead" for _, given in page.tags) == len(page.sections)
    assert (
        len(parse_pictures(text))
        == sum(name == "figure" for name, _ in page.tags)
        == text.count("<summary>The numbers</summary>")
    )


def test_headline_shows_the_scores_of_the_run() -> None:
    document = make_run_document()
    page = check_inert(make_report([document]))
    shown = [float(value) for section, value in page.values if section.endswith("headline")]
    scores = document["points"][0]["scores"]
    told = [
        scores["accuracy"]["value"],
        document["most_common"]["accuracy"],
        document["without_privacy"]["accuracy"],
    ]
    assert shown[:3] == told
    for measure in ("accuracy", "auc"):
        table = [
            scores[measure]["value"],
            document["without_privacy"][measure],
            document["most_common"][measure],
        ]
        assert any(shown[i : i + 3] == table for i in range(len(shown)))
    assert (
        "Predicts 81.2 % of 150 held-out rows correctly; guessing 54.7 %, without privacy 89.1 %."
        in page.text
    )
    assert "Epsilon 2.0 per person; neighbours: replace one; against everyone." in page.text
    # 4.3027 standard errors of 0.0125 to each side, over three runs.
    assert "75.9 % to 86.6 %" in page.text


def test_single_run_has_no_interval() -> None:
    one = make_point(2.0, 0.8125)
    one["scores"] = {"accuracy": {"value": 0.8125, "error": None}}
    page = check_inert(make_report([make_run_document(points=[one], repeats=1)]))
    assert "A single run has no interval" in page.text and " to 8" not in page.text


def test_numeric_label_is_compared_with_guessing_the_mean() -> None:
    scores = {"rmse": {"value": 41.5, "error": 0.5}, "r_squared": {"value": -0.125, "error": 0.1}}
    document = make_run_document(
        "pfds",
        points=[make_point(1.0, 0.5, scores=scores)],
        mean_label={"rmse": 40.25},
        without_privacy={"rmse": 20.5},
    )
    del document["most_common"]
    page = check_inert(make_report([document]))
    assert (
        "On 150 held-out rows its RMSE is 41.5 (lower is better); guessing 40.25, without privacy "
        "20.5." in page.text
    )
    assert (
        "3 runs cannot show that the model is better than guessing (41.5, guessing 40.25): its 95 "
        "% interval includes" in page.text
    )
    assert (
        "RMSE 41.5 (39.35 to 43.65), without privacy 20.5, guessing the mean 40.25; R squared "
        "-0.125" in page.text
    )


@pytest.mark.parametrize(
    ("accuracy", "error", "said"),
    [
        (0.5, 0.001, "worse than guessing, which uses no row (50.0 %, guessing 54.7 %)"),
        (
            0.55,
            0.0125,
            "cannot show that the model is better than guessing (55.0 %, guessing 54.7 %)",
        ),
        (
            0.5468,
            0.0125,
            "(54.68 %, guessing 54.69 %): its 95 % interval includes guessing. Try more runs, more "
            "rows or a larger epsilon.",
        ),
        (0.9, 0.01, ""),
    ],
)
def test_page_warns_if_model_is_no_better_than_guessing(
    accuracy: float, error: float, said: str
) -> None:
    one = make_point(
        2.0, accuracy, scores={"accuracy": {"value": accuracy, "error": error}}, people=15_000
    )
    page = check_inert(make_report([make_run_document(points=[one])]))
    warnings = [given for _, given in page.tags if given.get("class") == "warning"]
    assert bool(warnings) == bool(said) and said in page.text


def test_page_warns_of_too_few_participants() -> None:
    page = check_inert(
        make_report([make_run_document(points=[make_point(2.0, 0.8125, minimum=1000)])])
    )
    assert "450 people took part, but the study requires 1,000" in page.text


@pytest.mark.parametrize(
    ("protocol", "said"),
    [
        ("anonml", "declares 20,000 people, but 450 took part"),
        ("sdq", "rows, but the table has 450. The questions"),
    ],
)
def test_page_warns_if_declared_size_differs_from_participants(protocol: str, said: str) -> None:
    page = check_inert(make_report([make_run_document(protocol)]))
    assert said in page.text and any(given.get("class") == "warning" for _, given in page.tags)


def test_card_compares_each_measure_with_guessing_and_no_privacy() -> None:
    card = Page(find_section(make_report([make_run_document()]), "card")).text
    assert (
        "accuracy 81.2 % (75.9 % to 86.6 %), without privacy 89.1 %, guessing the most common "
        "class 54.7 %; AUC 0.844" in card
    )


def test_budget_of_one_release_has_no_remainder() -> None:
    budget = find_section(make_report([make_run_document()]), "budget")
    assert (
        "spent in one release" in budget
        and "after each release" not in budget
        and "1 release; epsilon" in budget
    )


def test_run_without_perturbation_has_no_label_and_no_budget() -> None:
    page = check_inert(
        make_report([make_run_document(points=[make_point(2.0, 0.8125, total=None)])])
    )
    assert list_section_keys(page) == ["headline", "card", "reproduce"]
    assert "nothing would be protected" in page.text


def test_sweep_over_epsilon_is_a_curve_that_marks_the_study() -> None:
    points = [
        make_point(epsilon, 0.6 + epsilon / 16, settings={"epsilon": epsilon})
        for epsilon in (0.5, 1.0, 2.0, 4.0)
    ]
    text = make_report([make_run_document(points=points)])
    page = check_inert(text)
    assert list_section_keys(page) == ["headline", "curve", *PLAIN[1:]]
    curve = find_section(text, "curve")
    assert (
        "the study: 2.0" in curve
        and "epsilon per person (replace one)" in curve
        and "against everyone" in curve
    )
    assert [float(value) for section, value in page.values if section.endswith("curve")][:4] == [
        0.6 + x / 16 for x in (0.5, 1.0, 2.0, 4.0)
    ]
    # The study itself is in the headline.
    assert "the point epsilon=2" in page.text and page.values[0][1] == repr(0.6 + 2 / 16)


def test_sweep_without_written_study_has_label_and_budget_of_shown_point() -> None:
    points = [
        make_point(epsilon, 0.7, settings={"depth": 2, "epsilon": epsilon})
        for epsilon in (0.5, 4.0)
    ]
    text = make_report([make_run_document("sdq", points=points)])
    page = check_inert(text)
    assert (
        "the point depth=2,epsilon=0.5" in page.text
        and "The label below is for the study with depth=2,epsilon=0.5." in page.text
    )
    assert "in total epsilon 0.5, delta 0" in find_section(text, "budget")
    assert "epsilon 0.5, delta 0" in find_section(text, "label") and "digest" not in find_section(
        text, "label"
    )


def test_run_without_noise_is_not_drawn_as_private() -> None:
    text = make_report(
        [
            make_run_document(
                points=[
                    make_point(2.0, 0.8, total=None, settings={"size": size})
                    for size in (100.0, 20_000.0)
                ]
            )
        ]
    )
    assert "without noise" in text and "private</text>" not in text
    assert all(
        curve.get("stroke-dasharray")
        for picture in parse_pictures(find_section(text, "sweeps"))
        for curve in picture
        if curve.tag.endswith("polyline")
    )


def test_each_swept_setting_has_a_separate_curve() -> None:
    points = [
        make_point(epsilon, 0.7, settings={"epsilon": epsilon, "size": size})
        for epsilon in (1.0, 2.0)
        for size in (100.0, 1000.0, 10000.0)
    ]
    text = make_report([make_run_document(points=points)])
    assert list_section_keys(check_inert(text)) == ["headline", "curve", "sweeps", *PLAIN[1:]]
    assert "epsilon=1" in text and "size=10000" in text


def test_runs_that_differ_in_epsilon_share_one_curve() -> None:
    text = make_report(
        [
            make_run_document(points=[make_point(epsilon, 0.7 + epsilon / 50)])
            for epsilon in (1.0, 2.0, 4.0)
        ]
    )
    page = check_inert(text)
    assert page.sections[0] == "across-curve"
    assert [float(value) for section, value in page.values if section == "across-curve"][:3] == [
        0.7 + x / 50 for x in (1.0, 2.0, 4.0)
    ]
    assert [one for one in page.sections if one.startswith("part-3")] == [
        f"part-3-{key}" for key in PLAIN
    ]


def test_runs_of_other_studies_or_units_share_no_curve() -> None:
    other = make_point(4.0, 0.8)
    other["total"]["unit"] = "record"
    for second in (
        make_run_document("sdq", points=[make_point(4.0, 0.8)]),
        make_run_document(points=[other]),
    ):
        page = check_inert(make_report([make_run_document(), second]))
        assert not [one for one in page.sections if one.endswith("curve")]


def test_budget_decreases_with_each_release() -> None:
    text = make_report([make_run_document("sdq")])
    budget = find_section(text, "budget")
    assert "4 releases; in total epsilon 1.0, delta 0 (plain sum of 4 releases)" in budget
    assert "0.0875" in budget and "0.7375" in budget and "noisy-max-shares" in budget
    assert len(parse_pictures(budget)) == 1
    assert parse_pictures(find_section(make_report([make_run_document()]), "budget")) == [], (
        "one release needs no picture"
    )


def test_comparison_names_units_trust_and_excluded_protocols() -> None:
    text = make_report([make_comparison_document()])
    page = check_inert(text)
    assert list_section_keys(page) == ["comparison", "reproduce"]
    for said in (
        "SDQ plus, tree 90.6 %",
        "per record; neighbours: add or remove one; against the miner",
        "after shuffling epsilon 0.125, delta 1e-06, against those who see the shuffled batches "
        "only",
        "not known",
        "DDML: this label has three classes",
        "The epsilons are not on one scale",
        "142 bytes, 1 message",
    ):
        assert said in page.text
    assert repr(0.8125) in [value for _, value in page.values]


def test_note_states_once_that_a_comparison_is_a_simulation() -> None:
    page = check_inert(make_report([make_comparison_document(remark=REMARK)]))
    assert page.text.count("This is a simulation.") == 1


def test_comparison_entries_name_their_epsilon_if_it_differs() -> None:
    document = make_comparison_document(repeats=1)
    document["entries"][1]["epsilon"] = 2.0
    text = make_report([document])
    assert "SDQ plus, tree, epsilon 2.0" in text and "Each dot is one run" in text


def test_audit_section_compares_bound_and_claim() -> None:
    page = check_inert(make_report([make_run_document()], [make_audit_document()]))
    assert (
        "1.687" in page.text
        and "consistent: the bound is not above the claim" in page.text
        and "0.999" in page.text
    )
    broken = check_inert(
        make_report(
            [make_run_document()],
            [make_audit_document(verdict="broken", bound=2.5, title="", mechanism="rappor")],
        )
    )
    assert "Do not run the study" in broken.text and "rappor" in broken.text
    assert "replays" not in broken.text


def test_audit_section_names_tests_replays_and_leak() -> None:
    audit = make_audit_document(
        verdict="broken", tests=15, replays=1200, leak="the field id of ddml.update"
    )
    page = check_inert(make_report([make_run_document()], [audit]))
    for part in ("tests at this confidence", "15", "1,200", "the field id of ddml.update"):
        assert part in page.text


def test_audit_is_shown_with_its_study() -> None:
    page = Page(
        make_report([make_run_document("sdq"), make_run_document()], [make_audit_document()])
    )
    assert [one for one in page.sections if one.endswith("audit")] == ["part-2-audit"]
    other = Page(
        make_report([make_run_document("sdq"), make_run_document("ddml")], [make_audit_document()])
    )
    assert [one for one in other.sections if one.endswith("audit")] == ["part-1-audit"]
    same = Page(
        make_report(
            [
                make_run_document(points=[make_point(1.0, 0.8)]),
                make_run_document(),
                make_run_document(),
            ],
            [make_audit_document()],
        )
    )
    assert [one for one in same.sections if one.endswith("audit")] == ["part-2-audit"]


def test_tree_is_a_picture_with_a_model_and_text_without() -> None:
    document = make_run_document(
        "sdq", points=[make_point(1.0, 0.8, tree="age?\n├─ <= 17 → <b>no</b>")]
    )
    text = make_report([document])
    assert (
        "├─ &lt;= 17 → &lt;b&gt;no&lt;/b&gt;" in text
        and list_section_keys(check_inert(text)).count("tree") == 1
    )
    model = make_result_document("sdq")["model"]
    drawn = make_report([document | {"learned": {"simulated": True, "model": model}}])
    assert (
        "may name a class that does not have its largest count" in drawn and "naive Bayes" in drawn
    )
    assert (
        "A decision tree for" in drawn and list_section_keys(check_inert(drawn)).count("tree") == 1
    )
    linear = make_result_document("anonml")["model"]
    assert make_tree_section({"model": linear}) is None
    assert "├─" in make_report([document | {"learned": {"simulated": True, "model": linear}}])


def test_pfds_run_shows_scores_of_personal_models() -> None:
    mean = {"accuracy": {"value": 0.71875, "error": 0.01}}
    at_home = {
        "home": mean,
        "own": {"accuracy": {"value": 0.65625, "error": 0.01}},
        "gain": {"value": 0.75, "error": 0.1},
        "n_holders": 20,
    }
    page = check_inert(
        make_report([make_run_document("pfds", points=[make_point(1.0, 0.8125, at_home=at_home)])])
    )
    assert (
        "0.71875" in [value for _, value in page.values] and "personal models, private" in page.text
    )


def test_unbounded_exposure_is_not_drawn() -> None:
    page = check_inert(make_report([make_run_with_details("exposure")]))
    assert "With 3 colluders or more, there is no bound on what they learn." in page.text
    nothing = make_point(
        1.0, 0.8, details={"exposure": [{"colluders": 0, "epsilon": None, "claimed": False}]}
    )
    assert "exposure" not in list_section_keys(
        check_inert(make_report([make_run_document("sdq", points=[nothing])]))
    )


def test_calibration_without_rows_is_not_drawn() -> None:
    empty = {
        "of": "the predicted class",
        "bins": [{"low": 0.0, "high": 0.1, "predicted": 0.05, "observed": 0.0, "n": 0}],
    }
    assert "calibration" not in list_section_keys(
        Page(
            make_report(
                [make_run_document(points=[make_point(2.0, 0.8, details={"calibration": empty})])]
            )
        )
    )


@pytest.mark.parametrize(
    ("protocol", "edit", "unit", "said"),
    [
        (
            "sdq",
            {"sdq": {"learner": "naive-bayes", "depth": None, "choice": None}},
            "person",
            "Naive Bayes, learned by SDQ plus",
        ),
        (
            "anonml",
            {"variant": "paper", "anonml": {"n_partitions": 4, "n_subsets": 1, "subset_size": 1}},
            "person",
            "A vote of small classifiers",
        ),
        (
            "pfds",
            {"label": {"values": None, "range": [0.0, 50.0]}},
            "record",
            "a number from 0 to 50",
        ),
        ("pfds", {}, "record", "Each row of a person is protected separately"),
        ("ddml", {}, "weight", "one weight of one update, not for the whole update"),
        (
            "sdq",
            {},
            "person",
            "A decision tree, learned by SDQ plus, secure-sum; predicts readmitted (one of no, "
            "yes)",
        ),
    ],
)
def test_card_describes_the_model_and_its_limits(
    protocol: str, edit: dict[str, Any], unit: str, said: str
) -> None:
    document = make_run_document(protocol)
    document["points"][0]["total"]["unit"] = unit
    for key, value in edit.items():
        document["study"][key] = (
            (document["study"][key] or {}) | value if isinstance(value, dict) else value
        )
    page = check_inert(make_report([document]))
    assert said in page.text
    assert (
        "For publication: this model was simulated. Anyone can compute its noise from the seed"
        in page.text
    )


def test_page_of_a_minimal_run_omits_empty_parts() -> None:
    few = {"participation": {"asked": 3, "answered": 3, "dropped": 0, "phases": [], "refused": {}}}
    run = make_run_document(points=[make_point(2.0, 0.8125, details=few)])
    del run["most_common"], run["without_privacy"]
    page = check_inert(make_report([run, make_comparison_document(left_out=[], yardsticks={})]))
    assert (
        "Rejected, by reason" not in page.text
        and "Excluded" not in page.text
        and "guessing 5" not in page.text
    )


def test_page_cuts_long_lists_and_says_so() -> None:
    table = {
        "cells": [f"c{i}" for i in range(40)],
        "classes": [f"k{i}" for i in range(9)],
        "error": None,
        "true": None,
    }
    some = [{"feature": f"f{i}", **table, "estimated": [[0.01] * 9] * 40} for i in range(15)]
    shares = [
        {"feature": f"f{i}", "cells": ["a"], "released": [1.0], "true": [1.0]} for i in range(15)
    ]
    people = DETAILS["participation"] | {"phases": [{"name": f"p{i}", "n": i} for i in range(30)]}
    details = {"histograms": some, "marginals": shares, "participation": people}
    page = check_inert(
        make_report([make_run_document(points=[make_point(2.0, 0.8, details=details)])])
    )
    for said in (
        "3 other features in run.json.",
        "16 cells more and 3 more classes in the numbers",
        "And 6 more phases.",
        "No valid error",
    ):
        assert said in page.text


@pytest.mark.parametrize("hostile", [words.replace("\ud800", "") for words in HOSTILE])
def test_hostile_text_in_any_field_is_inert(hostile: str) -> None:
    def spoilt(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spoilt(item) for key, item in value.items()}
        if isinstance(value, list):
            return [spoilt(item) for item in value]
        return hostile if isinstance(value, str) else value

    run = make_run_with_details(*DETAILS)
    first = run["points"][0]
    first["details"] = spoilt(first["details"])
    first["details"]["participation"]["refused"] = {hostile: 3}
    first["tree"] = hostile
    first["total"]["adversary"] = hostile
    run |= {
        "title": hostile,
        "remark": hostile,
        "command": hostile,
        "short": hostile,
        "digest": hostile,
        "versions": {hostile: hostile},
        "f1_of": hostile,
    }
    study = run["study"]
    if all(char.isprintable() for char in hostile):
        study["title"] = study["label"]["name"] = study["contact"] = hostile[:200]
        study["feature"][0]["name"] = f"f{hostile}"[:200]
    compared = make_comparison_document(title=hostile, remark=hostile, command=hostile)
    compared["entries"] = [
        entry | {"name": hostile, "trusted": hostile, "adversary": hostile, "unit": hostile}
        for entry in compared["entries"]
    ]
    compared["left_out"] = [{"name": hostile, "why": hostile}]
    result = make_result_document("sdq") | {"title": hostile}
    result["counts"] = {
        hostile: [hostile],
        "left_out": [{"holder": hostile, "reason": hostile}],
        "refused": {hostile: 3},
    }
    result["statement"] |= {
        "title": hostile,
        "purpose": hostile,
        "contact": hostile,
        "leaves": hostile,
        "not_covered": [hostile],
    }
    result["queries"][0][0]["features"] = [hostile]
    page = check_inert(
        make_report([run, compared, result], [make_audit_document(title=hostile, seen_in=hostile)])
    )
    assert len(page.sections) > 20


def test_lone_surrogates_are_replaced_or_rejected() -> None:
    check_inert(make_report([make_run_document(remark="\ud800")]))
    with pytest.raises(SpecError) as caught:
        make_report([make_run_document(points=[make_point(1.0, 0.5, tree="\ud800")])])
    assert caught.value.code == "REPORT-002"


def test_make_report_is_deterministic() -> None:
    documents = [
        make_run_with_details(*DETAILS),
        make_comparison_document(),
        make_result_document("sdq"),
    ]
    assert make_report(documents, [make_audit_document()]) == make_report(
        documents, [make_audit_document()]
    )


def test_make_report_rejects_no_documents_and_unknown_documents() -> None:
    with pytest.raises(UsageError) as caught:
        make_report([])
    assert caught.value.code == "REPORT-001"
    with pytest.raises(SpecError) as refused:
        make_report([make_run_document(), {"some": "thing"}])
    assert refused.value.what.startswith("Document 2 is not a run")
