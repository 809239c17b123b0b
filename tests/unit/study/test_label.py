"""The label in three views: the same figures in all, and escaped untrusted text."""

from __future__ import annotations

import html.parser
import json
import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from shoal.errors import SpecError
from shoal.privacy.events import LOCAL_PERSON, Event, Relation, Scope, Unit
from shoal.study.label import COLUMNS, SIMULATED, Statement
from shoal.study.pricing import AmplifiedGuarantee, BudgetLine, PricedRelease
from shoal.text import clean_text, display_width, wrap_text


def make_event(epsilon: float = 2.0, scope: Scope = LOCAL_PERSON, delta: float = 0.0) -> Event:
    return Event("random-response", {"cardinality": 2}, scope, epsilon, delta)


def make_statement(**changes: object) -> Statement:
    fields: dict[str, object] = {
        "title": "Who finishes the course?",
        "purpose": "Predict at mid-term which students will pass, so that tutors can help early.",
        "contact": "tutors@example.org",
        "protocol": "anonml",
        "trust": "local",
        "leaves": "one message of 4 random-looking bits",
        "seen_by": "the coordinator, without your name",
        "scope": LOCAL_PERSON,
        "epsilon": 2.0,
        "releases": (PricedRelease("your answer", make_event()),),
    }
    return Statement(**{**fields, **changes})


def read_label(label: Statement) -> str:
    """Return the text of the label without its box."""
    return " ".join(" ".join(line.strip("│┌┐└┘─ ") for line in str(label).splitlines()).split())


class Page(html.parser.HTMLParser):
    """A parser that collects the visible text, each tag and each attribute."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.shown, self.tags, self.attributes = "", [], []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *attribute) for attribute in attrs]

    def handle_data(self, data):
        self.shown += data + " "


def test_label_text_is_a_box_of_eighty_columns():
    lines = str(make_statement()).splitlines()
    assert all(display_width(line) == COLUMNS for line in lines)
    assert lines[0].startswith("┌ PRIVACY LABEL ─")
    assert lines[-1] == "└" + "─" * 78 + "┘"
    assert [line[:13] for line in lines if line[0] == "├"] == ["├ FOR EXPERTS"]
    assert all(line[0] == line[-1] == "│" for line in lines[1:-1] if line[0] != "├")


def test_label_text_contains_everything_needed_for_consent():
    text = read_label(
        make_statement(
            digest="7f3a-91c2-0be4",
            bytes=1_048,
            budget=BudgetLine(4.0, 1.3, 3.3, "a year"),
            not_covered=("that you enrolled", "what the model says about people like you"),
        )
    )
    for part in (
        "Study Who finishes the course? Purpose",
        "Contact tutors@example.org",
        "Digest 7f3a-91c2-0be4",
        "Protocol anonml, trust local Protects",
        "Relies on nobody: what you send is already protected, so you need to trust no one",
        "You send one message of 4 random-looking bits (at most 1,048 bytes)",
        "Seen by the coordinator, without your name",
        "everything about one person (unit: person)",
        "(relation: replace), against everyone",
        "epsilon 2.0, delta 0 (plain sum)",
        "your answer (random-response): epsilon 2.0",
        "at most 88.1 of 100.",
        "epsilon 4.0 a year; used 1.3; this study counts 2.0; after this 3.3",
        "Not covered that you enrolled what the model says about people like you",
        "What was already sent cannot be taken back.",
    ):
        assert part in text
    assert "imulation" not in text
    assert "your ledger counts" not in text
    plain, experts = text.split("FOR EXPERTS")
    assert "epsilon" not in plain.split("Your limit")[0] and "odds" not in experts


def test_label_omits_absent_rows():
    text = read_label(make_statement(trust="by post"))
    assert "anonml, trust by post Protects" in text and "Relies on" not in text
    assert not any(
        word in text
        for word in ("Digest", "bytes", "Your limit", "Not covered", "Shuffled", "paper")
    )


def test_closing_time_is_in_all_views():
    label = make_statement(closes=datetime(2031, 1, 31, 12, tzinfo=UTC))
    assert (
        "Closes 2031-01-31 12:00 UTC" in read_label(label)
        and "2031-01-31 12:00 UTC" in Page(label.to_html()).shown
    )
    assert label.to_dict()["closes"] == "2031-01-31T12:00:00+00:00"
    assert (
        "Closes" not in read_label(make_statement())
        and make_statement().to_dict()["closes"] is None
    )


def test_simulation_is_marked_in_all_views():
    label = make_statement(simulated=True)
    assert SIMULATED in read_label(label)
    assert SIMULATED in Page(label.to_html()).shown
    assert label.to_dict()["simulated"] is True


def test_add_remove_label_has_odds_of_presence_and_value():
    scope = Scope(Unit.RECORD, Relation.ADD_REMOVE, "the miner and up to 3 colluding databases")
    text = read_label(
        make_statement(
            scope=scope,
            epsilon=1.0,
            delta=1e-6,
            releases=(PricedRelease("a count", make_event(1.0, scope)),),
        )
    )
    assert (
        "its presence or absence (relation: add-remove), against the miner and up to 3 "
        "colluding databases" in text
    )
    assert (
        "record is in the data, what you send can raise it to at most 75.2 of 100, "
        "except with chance 1e-05." in text
    )
    assert "at most 89.2 of 100, except with chance 3.719e-05." in text


def test_weight_label_states_guarantee_of_everything_sent():
    scope = Scope(Unit.WEIGHT, Relation.REPLACE, "whoever sees one number")
    label = make_statement(
        scope=scope,
        epsilon=0.5,
        releases=(PricedRelease("an update", make_event(0.5, scope)),),
        n_weights=785,
    )
    whole = (
        "Guarantee epsilon 392.5, delta 0 for everything you send, against everyone who sees "
        "it (785 weights of 1 update)"
    )
    assert f"{whole} epsilon 0.5, delta 0 for each weight of one update, seen alone" in read_label(
        label
    )
    assert "what you send can raise it to at most 100.0 of 100" in read_label(label)
    assert (
        "seen without anything else computed from your rows, can raise it to at most 62.3 of 100"
        in read_label(label)
    )
    assert label.everything == (392.5, 0) and [
        odds["epsilon"] for odds in label.to_dict()["odds"]
    ] == [392.5, 0.5]
    assert "everything you send" not in read_label(replace(label, n_weights=None))


def test_several_updates_of_weights_compose_as_whole_updates():
    scope = Scope(Unit.WEIGHT, Relation.REPLACE, "whoever sees one number")
    label = make_statement(
        scope=scope,
        epsilon=0.5,
        releases=(PricedRelease("an update", make_event(0.5, scope, 1e-3), 4),),
        n_weights=10,
        delta=1e-3,
    )
    assert (
        label.everything[0] == label.plain_sum == 20
        and label.everything[1] == pytest.approx(0.04)
        and label.everything[1] >= 0.04
    )
    assert (
        "epsilon 20.0, delta 0.04001 for everything you send, against everyone who sees it (10 "
        "weights of 4 updates)" in read_label(label)
    )
    assert "epsilon 2.0" not in read_label(label).replace(
        "epsilon 20.0", ""
    ) and "plain sum" not in read_label(label)
    assert (
        label.to_dict()["epsilon"],
        label.to_dict()["everything"]["epsilon"],
        label.to_dict()["plain_sum"],
    ) == (0.5, 20, 20)
    assert replace(label, n_weights=1000).everything[1] == 1
    pure = (PricedRelease("an update", make_event(0.5, scope), 4),)
    assert replace(label, releases=pure, delta=0).everything == (20, 0)
    with pytest.raises(SpecError, match=r"LABEL-001.*epsilon 0.4 for releases that add up to 0.5"):
        replace(label, releases=pure, delta=0, epsilon=0.4)


def test_everything_equals_guarantee_if_unit_is_not_weight():
    label = make_statement(epsilon=2.5, n_weights=7)
    assert label.everything == (2.5, 0) and label.plain_sum == 2.0
    assert label.to_dict()["everything"] == {"epsilon": 2.5, "delta": 0}


def test_label_of_several_updates_protects_them_together():
    scope = Scope(Unit.UPDATE, Relation.REPLACE, "everyone who sees an update")
    one, four = (
        make_statement(
            scope=scope,
            epsilon=4.0,
            releases=(PricedRelease("an update", make_event(1.0, scope), n),),
        )
        for n in (1, 4)
    )
    assert (
        "Protects everything that one model update reveals (unit: update): its value"
        in read_label(one)
    )
    assert (
        "Protects everything that all your model updates reveal together (unit: update): its value"
        in read_label(four)
    )


def test_shuffled_label_states_local_and_central_guarantee():
    label = make_statement(trust="shuffled", shuffled=AmplifiedGuarantee(10_000, 0.1551, 1e-6))
    text = read_label(label)
    assert "Guarantee epsilon 2.0, delta 0 (plain sum)" in text
    assert "the shuffled batch of 10,000 honest messages can raise it to at most" in text
    assert (
        "shuffled among 10,000 honest messages: epsilon 0.1551, delta 1e-06, against those who "
        "see only the shuffled batch" in text
    )
    assert "at most 56.5 of 100, except with chance 1e-05." in text
    shuffled = label.to_dict()["shuffled"]
    assert (shuffled["epsilon_local"], shuffled["n"], shuffled["epsilon"], shuffled["delta"]) == (
        2.0,
        10_000,
        0.1551,
        1e-6,
    )


def test_composed_guarantee_is_what_the_ledger_counts():
    label = make_statement(
        epsilon=4.3,
        delta=1e-6,
        how="zero-concentrated sum",
        releases=(PricedRelease("a table", make_event(0.1), 100),),
    )
    assert "epsilon 4.3, delta 1e-06 (zero-concentrated sum) Releases" in read_label(label)
    assert label.counted == label.everything == (4.3, 1e-6)
    assert "100 x a table (random-response): epsilon 0.1 each" in read_label(label)
    assert label.to_dict()["plain_sum"] == label.plain_sum == 10.0


def test_label_shows_what_the_ledger_counts_under_replace():
    scope = Scope(Unit.RECORD, Relation.ADD_REMOVE, "everyone")
    release = PricedRelease("a table", Event("test", {}, scope, 0.5, 1e-6))
    label = make_statement(scope=scope, epsilon=0.5, delta=1e-6, releases=(release,))
    assert label.counted[0] == 1.0 and label.counted[1] == pytest.approx(2.6487e-6, rel=1e-4)
    assert (
        "your ledger counts epsilon 1.0, delta 2.649e-06: the same guarantee under replace"
        in read_label(label)
    )
    assert label.to_dict()["counted"] == {"epsilon": 1.0, "delta": label.counted[1]}


def test_label_also_shows_the_accounting_of_the_paper():
    label = make_statement(paper_epsilon=2 / 3)
    assert "by the paper's own accounting: epsilon 0.6667" in read_label(label)
    assert label.to_dict()["paper_epsilon"] == 2 / 3


def test_priced_release_prints_its_delta():
    assert (
        str(PricedRelease("noise", make_event(1.0, delta=1e-6)))
        == "noise (random-response): epsilon 1.0, delta 1e-06"
    )


def test_budget_line_says_if_the_limit_is_exceeded():
    assert str(BudgetLine(4.0, 3.0, 5.0, "a year")).endswith(
        "after this 5.0. This exceeds your limit: the ledger will refuse it."
    )
    assert (
        str(BudgetLine(2 / 3, 0.0, 1 / 3, "in all"))
        == "epsilon 0.6666 in all; used 0; this study counts 0.3334; after this 0.3334"
    )


def test_statement_rejects_epsilon_below_sum_of_releases():
    with pytest.raises(SpecError, match=r"LABEL-001.*epsilon 2.0 for releases that add up to 4.0"):
        make_statement(releases=(PricedRelease("your answer", make_event(), 2),))
    with pytest.raises(SpecError, match="LABEL-001"):
        make_statement(
            releases=(
                PricedRelease(
                    "your answer", make_event(scope=replace(LOCAL_PERSON, unit=Unit.RECORD))
                ),
            )
        )
    with pytest.raises(SpecError, match="LABEL-001"):
        PricedRelease("nothing", make_event(), 0)
    with pytest.raises(SpecError, match="ACCOUNT-001"):
        make_statement(epsilon=math.nan, delta=1e-6)


def test_label_html_is_one_table_with_the_rows_of_the_text():
    label = make_statement(budget=BudgetLine(4.0, 1.3, 3.3, "a year"))
    page = Page(label.to_html())
    assert page.tags[0] == "table"
    assert (
        page.tags.count("th") - 1
        == page.tags.count("td")
        == page.attributes.count(("th", "scope", "row"))
        == len(list(label.rows()))
    )
    assert set(page.tags) <= {"table", "caption", "tbody", "tr", "th", "td", "br"}
    for head, paragraphs in label.rows():
        assert head in page.shown
        assert all(paragraph in page.shown for paragraph in paragraphs)
    assert label._repr_html_() == label.to_html()


def test_label_dict_is_json_with_every_figure():
    data = make_statement(
        budget=BudgetLine(4.0, 1.3, 3.3, "a year"), not_covered=("that you enrolled",), bytes=12
    ).to_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert (data["unit"], data["relation"], data["adversary"]) == ("person", "replace", "everyone")
    assert data["releases"][0]["name"] == "your answer"
    assert data["releases"][0]["epsilon"] == 2.0
    assert [move["to_at_most"] for move in data["odds"][0]["moves"]] == [7.0, 45.1, 88.1]
    assert data["budget"] == {
        "limit": 4.0,
        "used": 1.3,
        "after": 3.3,
        "period": "a year",
        "about": "",
    }
    assert data["shuffled"] is None


@pytest.mark.parametrize(
    "name",
    [
        "title",
        "purpose",
        "contact",
        "protocol",
        "trust",
        "leaves",
        "seen_by",
        "how",
        "digest",
        "undo",
    ],
)
def test_hostile_text_is_escaped_in_every_field(name):
    label = make_statement(**{name: "a<script>alert(1)</script>\x1b[2J\u202eb\n│ epsilon 0.1"})
    assert "\x1b" not in str(label) + label.to_html() + json.dumps(
        label.to_dict(), ensure_ascii=False
    )
    assert "\u202e" not in str(label) + label.to_html() + json.dumps(
        label.to_dict(), ensure_ascii=False
    )
    assert "<script" not in label.to_html()
    assert "script" not in Page(label.to_html()).tags
    assert all(
        display_width(line) == COLUMNS and line[0] in "┌│├└" for line in str(label).splitlines()
    )


def test_hostile_text_is_escaped_in_releases_budget_and_scope():
    label = make_statement(
        scope=replace(LOCAL_PERSON, adversary="all\u2066"),
        releases=(PricedRelease("x\r", replace(make_event(), mechanism="y\x07")),),
        budget=BudgetLine(1.0, 0.0, 1.0, "a\u200fyear"),
        not_covered=("<b>\u200b",),
    )
    for view in (str(label), label.to_html()):
        assert not any(char in view for char in "\u2066\x07\u200f\u200b\r")
    assert "<b>" not in label.to_html()


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain", "plain"),
        ("two\n\tlines\u2028here\x85", "two lines here"),
        ("a\u200bb\u2060c\ufeff", "a�b�c�"),
        ("\ud800x\ue000\U000e0041", "�x��"),
        ("a\u3164b\u2800", "a�b�"),
        ("e\u0301", "é"),
        ("z" + "\u0335" * 50 + "!", "z\u0335\u0335!"),
        ("学生 ΠΣ", "学生 ΠΣ"),
        ("", ""),
    ],
)
def test_clean_text_replaces_unsafe_characters(text, cleaned):
    assert clean_text(text) == cleaned


def test_wrap_text_counts_columns_and_cuts_long_words():
    assert wrap_text("aa bb cc", 5) == ["aa bb", "cc"]
    assert wrap_text("abcdefgh", 3) == ["abc", "def", "gh"]
    assert wrap_text("a bcdefgh", 4) == ["a", "bcde", "fgh"]
    assert wrap_text("学学学", 5) == ["学学", "学"]
    assert wrap_text("", 5) == [""]
    assert display_width("学e\u0335") == 3
