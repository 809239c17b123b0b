"""A report shows what its documents hold, and nothing else; whatever they hold, it is inert."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import SpecError, UsageError
from shoal.report import report_of
from shoal.report.sections.learned import tree
from unit.report.cases import (
    DETAILS,
    HOSTILE,
    SECTION_OF,
    Page,
    audit_document,
    check_inert,
    compared_document,
    pictures,
    point,
    result_document,
    run_document,
    with_details,
)

PLAIN = ["headline", "budget", "card", "label", "reproduce"]
"""The sections of any run."""


def keys(page: Page) -> list[str]:
    return [one.partition("-")[2].partition("-")[2] for one in page.sections]


def section(text: str, key: str) -> str:
    """A section of the first document, as markup."""
    return text.partition(f'id="part-1-{key}"')[2].partition("</section>")[0]


def test_a_run_without_details_has_the_sections_that_need_none() -> None:
    page = check_inert(report_of([run_document()]))
    assert keys(page) == PLAIN
    assert "This is a simulation: nothing was sent." in page.text
    links = [given["href"] for name, given in page.tags if name == "a"]
    assert [f"#{one}" for one in page.sections] == [link for link in links if link != "#main"]


@pytest.mark.parametrize("name", DETAILS)
def test_each_detail_brings_its_section_about(name: str) -> None:
    page = check_inert(report_of([with_details(name)]))
    assert set(keys(page)) - set(PLAIN) == {SECTION_OF[name]}


def test_sections_come_in_their_order_and_each_says_how_to_read_it() -> None:
    text = report_of([with_details(*DETAILS)], [audit_document()])
    page = check_inert(text)
    order = ["headline", "budget", "participation", "histograms", "weights", "spread", "exposure", "released", "calibration", "audit"]
    assert keys(page) == [*order, "card", "label", "reproduce"]
    assert sum(given.get("class") == "lead" for _, given in page.tags) == len(page.sections)
    assert len(pictures(text)) == sum(name == "figure" for name, _ in page.tags) == text.count("<summary>The numbers</summary>")


def test_the_headline_says_exactly_what_the_run_says() -> None:
    document = run_document()
    page = check_inert(report_of([document]))
    shown = [float(value) for section, value in page.values if section.endswith("headline")]
    scores = document["points"][0]["scores"]
    told = [scores["accuracy"]["value"], document["most_common"]["accuracy"], document["without_privacy"]["accuracy"]]
    assert shown[:3] == told
    for measure in ("accuracy", "auc"):
        table = [scores[measure]["value"], document["without_privacy"][measure], document["most_common"][measure]]
        assert any(shown[i : i + 3] == table for i in range(len(shown)))
    assert "Predicts 81.2 % of 150 unseen rows rightly; guessing 54.7 %, without privacy 89.1 %." in page.text
    assert "Epsilon 2.0 per person; neighbours: replace one; against everyone." in page.text
    # 4.3027 standard errors of 0.0125 to each side, over three runs.
    assert "75.9 % to 86.6 %" in page.text


def test_one_run_has_no_interval_and_says_so() -> None:
    one = point(2.0, 0.8125)
    one["scores"] = {"accuracy": {"value": 0.8125, "error": None}}
    page = check_inert(report_of([run_document(points=[one], repeats=1)]))
    assert "one run has no interval" in page.text and " to 8" not in page.text


def test_a_number_is_held_against_its_mean() -> None:
    scores = {"rmse": {"value": 41.5, "error": 0.5}, "r_squared": {"value": -0.125, "error": 0.1}}
    document = run_document("pfds", points=[point(1.0, 0.5, scores=scores)], mean_label={"rmse": 40.25}, without_privacy={"rmse": 20.5})
    del document["most_common"]
    page = check_inert(report_of([document]))
    assert "On 150 unseen rows its RMSE is 41.5 (less is better); guessing 40.25, without privacy 20.5." in page.text
    assert "It does no better than guessing, as far as 3 runs can show (41.5 against 40.25): its 95 % interval reaches" in page.text
    assert "RMSE 41.5 (39.35 to 43.65), without privacy 20.5, guessing the mean 40.25; R squared -0.125" in page.text


@pytest.mark.parametrize(
    ("accuracy", "error", "said"),
    [
        (0.5, 0.001, "worse than guessing, which looks at no row (50.0 % against 54.7 %)"),
        (0.55, 0.0125, "no better than guessing, as far as 3 runs can show (55.0 % against 54.7 %)"),
        (
            0.5468,
            0.0125,
            "(54.68 % against 54.69 %): its 95 % interval reaches guessing. More runs, more rows or a larger epsilon might tell",
        ),
        (0.9, 0.01, ""),
    ],
)
def test_what_is_no_better_than_guessing_is_said_to_be(accuracy: float, error: float, said: str) -> None:
    one = point(2.0, accuracy, scores={"accuracy": {"value": accuracy, "error": error}}, people=15_000)
    page = check_inert(report_of([run_document(points=[one])]))
    warnings = [given for _, given in page.tags if given.get("class") == "warning"]
    assert bool(warnings) == bool(said) and said in page.text


def test_too_few_participants_are_said_to_be_too_few() -> None:
    page = check_inert(report_of([run_document(points=[point(2.0, 0.8125, minimum=1000)])]))
    assert "450 people took part, and the study learns nothing from fewer than 1,000" in page.text


@pytest.mark.parametrize(
    ("protocol", "said"), [("anonml", "declares 20,000 people, and 450 took part"), ("sdq", "rows, and there are 450: what is asked")]
)
def test_a_declared_size_far_from_who_took_part_is_said(protocol: str, said: str) -> None:
    page = check_inert(report_of([run_document(protocol)]))
    assert said in page.text and any(given.get("class") == "warning" for _, given in page.tags)


def test_the_card_holds_each_measure_against_guessing_and_no_privacy() -> None:
    card = Page(section(report_of([run_document()]), "card")).text
    assert "accuracy 81.2 % (75.9 % to 86.6 %), without privacy 89.1 %, guessing the most common class 54.7 %; AUC 0.844" in card


def test_one_release_leaves_nothing_to_be_left() -> None:
    budget = section(report_of([run_document()]), "budget")
    assert "spent in one release" in budget and "after each release" not in budget and "1 release; epsilon" in budget


def test_without_perturbation_there_is_no_guarantee_no_label_and_no_budget() -> None:
    page = check_inert(report_of([run_document(points=[point(2.0, 0.8125, total=None)])]))
    assert keys(page) == ["headline", "card", "reproduce"]
    assert "nothing would be protected" in page.text


def test_a_sweep_over_epsilon_is_a_curve_with_the_study_s_epsilon_marked() -> None:
    points = [point(epsilon, 0.6 + epsilon / 16, settings={"epsilon": epsilon}) for epsilon in (0.5, 1.0, 2.0, 4.0)]
    text = report_of([run_document(points=points)])
    page = check_inert(text)
    assert keys(page) == ["headline", "curve", *PLAIN[1:]]
    curve = section(text, "curve")
    assert "the study: 2.0" in curve and "epsilon per person (replace one)" in curve and "against everyone" in curve
    assert [float(value) for section, value in page.values if section.endswith("curve")][:4] == [0.6 + x / 16 for x in (0.5, 1.0, 2.0, 4.0)]
    # The study itself stands in the headline.
    assert "the point epsilon=2" in page.text and page.values[0][1] == repr(0.6 + 2 / 16)


def test_a_sweep_without_the_study_itself_has_the_label_and_the_budget_of_the_point_that_is_shown() -> None:
    points = [point(epsilon, 0.7, settings={"depth": 2, "epsilon": epsilon}) for epsilon in (0.5, 4.0)]
    text = report_of([run_document("sdq", points=points)])
    page = check_inert(text)
    assert "the point depth=2,epsilon=0.5" in page.text and "This is the study varied to depth=2,epsilon=0.5." in page.text
    assert "together epsilon 0.5, delta 0" in section(text, "budget")
    assert "epsilon 0.5, delta 0" in section(text, "label") and "digest" not in section(text, "label")


def test_what_is_without_noise_is_not_drawn_as_private() -> None:
    text = report_of([run_document(points=[point(2.0, 0.8, total=None, settings={"size": size}) for size in (100.0, 20_000.0)])])
    assert "without noise" in text and "private</text>" not in text
    assert all(
        curve.get("stroke-dasharray")
        for picture in pictures(section(text, "sweeps"))
        for curve in picture
        if curve.tag.endswith("polyline")
    )


def test_other_settings_are_curves_of_their_own() -> None:
    points = [
        point(epsilon, 0.7, settings={"epsilon": epsilon, "size": size}) for epsilon in (1.0, 2.0) for size in (100.0, 1000.0, 10000.0)
    ]
    text = report_of([run_document(points=points)])
    assert keys(check_inert(text)) == ["headline", "curve", "sweeps", *PLAIN[1:]]
    assert "epsilon=1" in text and "size=10000" in text


def test_runs_that_differ_in_epsilon_are_one_curve() -> None:
    text = report_of([run_document(points=[point(epsilon, 0.7 + epsilon / 50)]) for epsilon in (1.0, 2.0, 4.0)])
    page = check_inert(text)
    assert page.sections[0] == "across-curve"
    assert [float(value) for section, value in page.values if section == "across-curve"][:3] == [0.7 + x / 50 for x in (1.0, 2.0, 4.0)]
    assert [one for one in page.sections if one.startswith("part-3")] == [f"part-3-{key}" for key in PLAIN]


def test_runs_about_other_questions_or_units_are_not_on_one_curve() -> None:
    other = point(4.0, 0.8)
    other["total"]["unit"] = "record"
    for second in (run_document("sdq", points=[point(4.0, 0.8)]), run_document(points=[other])):
        page = check_inert(report_of([run_document(), second]))
        assert not [one for one in page.sections if one.endswith("curve")]


def test_the_budget_burns_down_release_by_release() -> None:
    text = report_of([run_document("sdq")])
    budget = section(text, "budget")
    assert "4 releases; together epsilon 1.0, delta 0 (plain sum of 4 releases)" in budget
    assert "0.0875" in budget and "0.7375" in budget and "noisy-max-shares" in budget
    assert len(pictures(budget)) == 1
    assert pictures(section(report_of([run_document()]), "budget")) == [], "one release needs no picture"


def test_a_comparison_names_units_trust_and_what_was_left_out() -> None:
    text = report_of([compared_document()])
    page = check_inert(text)
    assert keys(page) == ["comparison", "reproduce"]
    for said in (
        "SDQ plus, tree 90.6 %",
        "per record; neighbours: add or remove one; against the miner",
        "in the crowd epsilon 0.125, delta 1e-06, against those who see the shuffled batches only",
        "not known",
        "DDML: this label has three classes",
        "the epsilons are not one scale",
        "142 bytes, 1 message",
    ):
        assert said in page.text
    assert repr(0.8125) in [value for _, value in page.values]


def test_entries_of_several_epsilons_are_told_apart() -> None:
    document = compared_document(repeats=1)
    document["entries"][1]["epsilon"] = 2.0
    text = report_of([document])
    assert "SDQ plus, tree, epsilon 2.0" in text and "Each dot is one run" in text


def test_an_audit_stands_beside_the_claim() -> None:
    page = check_inert(report_of([run_document()], [audit_document()]))
    assert "1.687" in page.text and "consistent: the bound is not above the claim" in page.text and "0.999" in page.text
    broken = check_inert(report_of([run_document()], [audit_document(verdict="broken", bound=2.5, title="", mechanism="rappor")]))
    assert "do not run the study" in broken.text and "rappor" in broken.text


def test_an_audit_goes_with_the_study_that_it_is_of() -> None:
    page = Page(report_of([run_document("sdq"), run_document()], [audit_document()]))
    assert [one for one in page.sections if one.endswith("audit")] == ["part-2-audit"]
    other = Page(report_of([run_document("sdq"), run_document("ddml")], [audit_document()]))
    assert [one for one in other.sections if one.endswith("audit")] == ["part-1-audit"]
    same = Page(report_of([run_document(points=[point(1.0, 0.8)]), run_document(), run_document()], [audit_document()]))
    assert [one for one in same.sections if one.endswith("audit")] == ["part-2-audit"]


def test_a_tree_is_text_where_there_is_no_model_and_a_picture_where_there_is() -> None:
    document = run_document("sdq", points=[point(1.0, 0.8, tree="age?\n├─ <= 17 → <b>no</b>")])
    text = report_of([document])
    assert "├─ &lt;= 17 → &lt;b&gt;no&lt;/b&gt;" in text and keys(check_inert(text)).count("tree") == 1
    model = result_document("sdq")["model"]
    drawn = report_of([document | {"learned": {"simulated": True, "model": model}}])
    assert "may name a class that its own counts do not favour" in drawn and "naive Bayes" in drawn
    assert "A decision tree for" in drawn and keys(check_inert(drawn)).count("tree") == 1
    linear = result_document("anonml")["model"]
    assert tree({"model": linear}) is None
    assert "├─" in report_of([document | {"learned": {"simulated": True, "model": linear}}])


def test_holders_have_models_at_home() -> None:
    mean = {"accuracy": {"value": 0.71875, "error": 0.01}}
    at_home = {"home": mean, "own": {"accuracy": {"value": 0.65625, "error": 0.01}}, "gain": {"value": 0.75, "error": 0.1}, "n_holders": 20}
    page = check_inert(report_of([run_document("pfds", points=[point(1.0, 0.8125, at_home=at_home)])]))
    assert "0.71875" in [value for _, value in page.values] and "home models, private" in page.text


def test_what_has_no_bound_is_not_drawn_as_one() -> None:
    page = check_inert(report_of([with_details("exposure")]))
    assert "From 3 colluders on, nothing bounds what they learn." in page.text
    nothing = point(1.0, 0.8, details={"exposure": [{"colluders": 0, "epsilon": None, "claimed": False}]})
    assert "exposure" not in keys(check_inert(report_of([run_document("sdq", points=[nothing])])))


def test_bins_without_rows_are_no_dots() -> None:
    empty = {"of": "the predicted class", "bins": [{"low": 0.0, "high": 0.1, "predicted": 0.05, "observed": 0.0, "n": 0}]}
    assert "calibration" not in keys(Page(report_of([run_document(points=[point(2.0, 0.8, details={"calibration": empty})])])))


@pytest.mark.parametrize(
    ("protocol", "edit", "unit", "said"),
    [
        ("sdq", {"sdq": {"learner": "naive-bayes", "depth": None, "choice": None}}, "person", "Naive Bayes, learned by SDQ plus"),
        (
            "anonml",
            {"variant": "paper", "anonml": {"n_partitions": 4, "n_subsets": 1, "subset_size": 1}},
            "person",
            "A vote of small classifiers",
        ),
        ("pfds", {"label": {"values": None, "range": [0.0, 50.0]}}, "record", "a number from 0 to 50"),
        ("pfds", {}, "record", "Several rows of one person are protected one by one"),
        ("ddml", {}, "weight", "one weight of one update, not about the update as a whole"),
        ("sdq", {}, "person", "A decision tree, learned by SDQ plus, secure-sum; predicts readmitted (one of no, yes)"),
    ],
)
def test_the_card_says_what_the_model_is_and_is_not(protocol: str, edit: dict[str, Any], unit: str, said: str) -> None:
    document = run_document(protocol)
    document["points"][0]["total"]["unit"] = unit
    for key, value in edit.items():
        document["study"][key] = (document["study"][key] or {}) | value if isinstance(value, dict) else value
    page = check_inert(report_of([document]))
    assert said in page.text
    assert "For publication: this model was simulated with noise that anyone can repeat from the seed" in page.text


def test_little_is_shown_of_little() -> None:
    few = {"participation": {"asked": 3, "answered": 3, "dropped": 0, "phases": [], "refused": {}}}
    run = run_document(points=[point(2.0, 0.8125, details=few)])
    del run["most_common"], run["without_privacy"]
    page = check_inert(report_of([run, compared_document(left_out=[], yardsticks={})]))
    assert "Refused, by reason" not in page.text and "Left out" not in page.text and "guessing 5" not in page.text


def test_many_features_cells_classes_and_phases_are_cut_and_said_to_be() -> None:
    table = {"cells": [f"c{i}" for i in range(40)], "classes": [f"k{i}" for i in range(9)], "error": None, "true": None}
    some = [{"feature": f"f{i}", **table, "estimated": [[0.01] * 9] * 40} for i in range(15)]
    shares = [{"feature": f"f{i}", "cells": ["a"], "released": [1.0], "true": [1.0]} for i in range(15)]
    people = DETAILS["participation"] | {"phases": [{"name": f"p{i}", "n": i} for i in range(30)]}
    details = {"histograms": some, "marginals": shares, "participation": people}
    page = check_inert(report_of([run_document(points=[point(2.0, 0.8, details=details)])]))
    for said in (
        "3 other features in run.json.",
        "16 cells more and 3 more classes in the numbers",
        "And 6 more phases.",
        "no honest error",
    ):
        assert said in page.text


@pytest.mark.parametrize("hostile", [words.replace("\ud800", "") for words in HOSTILE])
def test_words_of_strangers_are_inert_wherever_they_are(hostile: str) -> None:
    def spoilt(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spoilt(item) for key, item in value.items()}
        if isinstance(value, list):
            return [spoilt(item) for item in value]
        return hostile if isinstance(value, str) else value

    run = with_details(*DETAILS)
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
    compared = compared_document(title=hostile, remark=hostile, command=hostile)
    compared["entries"] = [
        entry | {"name": hostile, "trusted": hostile, "adversary": hostile, "unit": hostile} for entry in compared["entries"]
    ]
    compared["left_out"] = [{"name": hostile, "why": hostile}]
    result = result_document("sdq") | {"title": hostile}
    result["counts"] = {hostile: [hostile], "left_out": [{"holder": hostile, "reason": hostile}], "refused": {hostile: 3}}
    result["statement"] |= {"title": hostile, "purpose": hostile, "contact": hostile, "leaves": hostile, "not_covered": [hostile]}
    result["queries"][0][0]["features"] = [hostile]
    page = check_inert(report_of([run, compared, result], [audit_document(title=hostile, seen_in=hostile)]))
    assert len(page.sections) > 20


def test_half_of_a_pair_of_code_units_is_no_text() -> None:
    check_inert(report_of([run_document(remark="\ud800")]))
    with pytest.raises(SpecError) as caught:
        report_of([run_document(points=[point(1.0, 0.5, tree="\ud800")])])
    assert caught.value.code == "REPORT-002"


def test_the_same_documents_give_the_same_bytes() -> None:
    documents = [with_details(*DETAILS), compared_document(), result_document("sdq")]
    assert report_of(documents, [audit_document()]) == report_of(documents, [audit_document()])


def test_nothing_to_report_on_is_an_error() -> None:
    with pytest.raises(UsageError) as caught:
        report_of([])
    assert caught.value.code == "REPORT-001"
    with pytest.raises(SpecError) as refused:
        report_of([run_document(), {"some": "thing"}])
    assert refused.value.what.startswith("Document 2 is neither a run")
