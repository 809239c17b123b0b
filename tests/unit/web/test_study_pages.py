"""Pages from plain data: content, escaping, and names of static files."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from shoal.coordinator.enrolment import CoordinatorKeys
from shoal.study.handle import StudyHandle
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest, RosterMember
from shoal.study.starters import read_starter
from shoal.web import rendering, study_pages
from shoal.web.rendering import render_ledger
from shoal.web.study_pages import StudyFacts
from tests.support.coordinator import identity
from tests.support.participants import make_manifest

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7 * 7 }}\u202e"
PROTOCOLS = ("anonml", "ddml", "sdq", "pfds")
NOTHING = {"status": "open", "reason": None, "enrolled": 0, "accepted": 0, "refused": {}}


def known_of(manifest: Manifest) -> StudyFacts:
    return StudyFacts.from_handle(StudyHandle(manifest))


def template(protocol: str) -> StudyFacts:
    return known_of(Manifest(parse_study_text(read_starter(protocol))))


def summary_of(known: StudyFacts, **more: Any) -> dict[str, Any]:
    digest = known.handle.manifest.digest.hex()
    return {
        "digest": digest,
        "short": known.handle.manifest.short_digest,
        "status": "open",
        "has_roster": False,
        "by_invitation": False,
        **more,
    }


def page_of(
    known: StudyFacts,
    n_named: int = 0,
    ends: str | None = "soon",
    phases: Any = (),
    **progress: Any,
) -> str:
    described = study_pages.make_page_data(
        known, summary_of(known), {**NOTHING, **progress}, n_named=n_named, ends=ends, phases=phases
    )
    return study_pages.render_study(described)


class Elements(HTMLParser):
    """The elements of a page, with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_study_page_shows_study(protocol: str) -> None:
    known = template(protocol)
    n_named = {"sdq": 10, "pfds": 20}.get(protocol, 0)
    page = Elements(
        page_of(known, n_named, enrolled=10, accepted=20, refused={"MSG-002": 30, "ANONML-001": 10})
    )
    for words in (
        known.statement.title,
        known.statement.purpose,
        known.handle.manifest.digest.hex(),
        "The study ends soon.",
        "30 × MSG-002",
    ):
        assert words in page.text
    for head in ("You send", "Protects", "Guarantee"):
        assert head in page.text
        assert all(
            " ".join(line.split()) in page.text for line in dict(known.statement.rows())[head]
        )
    for feature in known.handle.manifest.study.feature:
        assert feature.name in page.text
    [bar] = [attributes for tag, attributes in page.found if tag == "progress"]
    total = {
        "anonml": ("accepted", 2000),
        "ddml": ("accepted", 50_000),
        "sdq": ("enrolled", 10),
        "pfds": ("enrolled", 20),
    }[protocol]
    assert (bar["data-total"], int(bar["max"] or 0)) == total
    assert int(bar["value"] or 0) == {"enrolled": 10, "accepted": 20}[total[0]]
    assert ("rounded down" in page.text) == (protocol in ("anonml", "ddml"))


def test_odds_chart_matches_text() -> None:
    known = template("anonml")
    [one] = study_pages.list_odds(known.statement)
    assert (one["from"], one["to"]) == (50, 88.1) and "88.1 of 100" in one["words"]
    page = page_of(known)
    assert (
        '<rect class="odds-after" width="88.1"' in page
        and "A guess of 50 of 100 becomes at most 88.1 of 100." in page
    )


def test_study_page_shows_warnings_of_plan() -> None:
    known = template("anonml")
    text = Elements(page_of(known)).text
    assert (
        "The analyst states that they were not taken from anyone’s data" in text
        and "Warning." not in text
    )
    assert 'class="results" data-when="done" hidden' in page_of(known)
    warned = study_pages.make_page_data(
        known,
        summary_of(known),
        NOTHING,
        n_named=0,
        ends=None,
        phases=(),
        warnings=["Most of it is <b>noise</b>."],
    )
    assert "Warning. Most of it is <b>noise</b>." in Elements(study_pages.render_study(warned)).text


@pytest.mark.parametrize("status", ["done", "failed", "closed"])
def test_study_page_shows_outcome(status: str) -> None:
    page = page_of(
        template("anonml"),
        ends=None,
        status=status,
        reason=None if status == "done" else "Too few <b>.",
    )
    assert "data-events" not in page and 'noscript><p class="hint">Without' not in page
    assert (
        ("<h3>Result</h3>" in page)
        == ("/report" in page)
        == ("/model" in page)
        == (status == "done")
    )
    assert 'class="results" data-when="done" hidden' not in page
    assert ("Too few &lt;b&gt;." in page) == (status != "done")
    assert 'aria-labelledby="join" data-when="open" hidden' in page


def test_study_page_shows_phases_relay_epoch_and_invitations() -> None:
    draft = template("anonml").handle.manifest
    keys = CoordinatorKeys(bytes(32)).public_keys
    issuer_key, gateway_key = bytes.fromhex(keys.issuer_key), bytes.fromhex(keys.gateway_key)
    manifest = replace(
        draft,
        issuer_key=issuer_key,
        gateway_key=gateway_key,
        relay="https://relay.example.org",
        epoch="spring <b>",
    )
    known = known_of(manifest)
    described = study_pages.make_page_data(
        known,
        summary_of(known, by_invitation=True),
        NOTHING,
        n_named=0,
        ends="soon",
        phases=[{"number": 1, "of": 3, "opened": "yesterday", "closes": "tomorrow"}],
    )
    text = Elements(study_pages.render_study(described)).text
    for words in (
        "Phase 1 of 3",
        "https://relay.example.org",
        "spring <b>",
        "--invitation CODE",
        "people with an invitation",
        "people registered",
    ):
        assert words in text


def test_study_page_shortens_long_lists() -> None:
    study = make_manifest("anonml").study
    wide = study.model_copy(
        update={
            "feature": tuple(
                feature.model_copy(update={"name": f"{feature.name} {i}"})
                for i in range(40)
                for feature in study.feature
            ),
            "label": study.label.model_copy(update={"values": tuple("abcdefghijkl")}),
        }
    )
    known = known_of(Manifest(wide))
    text = Elements(page_of(known)).text
    assert (
        "And 20 more; see the manifest." in text
        and "one of a, b, c, d, e, f, g, h and 4 more" in text
    )
    described = study_pages.make_page_data(
        known, summary_of(known, has_roster=True), NOTHING, n_named=3, ends=None, phases=()
    )
    assert described["who"] == "members on its roster"


def test_study_page_describes_text_features() -> None:
    known = known_of(make_manifest("ddml", 100, feature=[{"name": "query", "buckets": 4096}]))
    assert "text, in 4,096 buckets" in Elements(page_of(known)).text


@pytest.fixture(scope="module")
def hostile() -> StudyFacts:
    words = HOSTILE.replace("\u202e", "")
    values = (words[:60], "no")
    text = {"title": words, "purpose": words, "contact": words}
    feature = [{"name": words[:60], "values": list(values)}]
    return known_of(
        make_manifest(
            "anonml",
            **text,
            feature=feature,
            label={"name": f"{words[:50]}y", "values": list(values)},
        )
    )


def test_untrusted_text_is_escaped(hostile: StudyFacts) -> None:
    digest = hostile.handle.manifest.digest.hex()
    problem = {"code": "SPEC-001", "title": HOSTILE, "detail": HOSTILE, "fix": HOSTILE}
    given = dict.fromkeys(study_pages.PUBLISH_FIELDS, f"</textarea>{HOSTILE}")
    pages = {
        "studies": study_pages.render_studies(
            [study_pages.make_card(hostile, summary_of(hostile))]
        ),
        "study": page_of(hostile, reason=HOSTILE, status="failed", ends=HOSTILE),
        "label": study_pages.render_label(hostile, digest),
        "publish": study_pages.render_publish(given, problem),
        "close": study_pages.render_close(digest, "short", HOSTILE, "open", problem),
        "notice": study_pages.render_notice("Not here", problem),
    }
    for name, page in pages.items():
        found = Elements(page)
        assert "alert(1)" in page, name
        scripts = [attributes for tag, attributes in found.found if tag == "script"]
        assert all(set(attributes) == {"src", "defer"} for attributes in scripts), name
        assert {attributes["src"] for tag, attributes in found.found if tag == "img"} == {
            rendering.make_asset_path("icon.svg")
        }, name
        assert not [
            key
            for _, attributes in found.found
            for key in attributes
            if key.startswith("on") or key == "style"
        ], name
        assert "49" not in found.text or name in ("study", "studies", "label", "close"), name
        assert "{{ 7 * 7 }}" in found.text or name == "notice", name
        assert "\u202e" not in page or name in ("publish", "close", "notice"), name


def test_pages_load_only_own_files() -> None:
    pages = [
        page_of(template("ddml")),
        study_pages.render_studies([]),
        study_pages.render_publish(),
        study_pages.render_label(template("sdq"), "00" * 32),
    ]
    for page in pages:
        for tag, attributes in Elements(page).found:
            for key in ("src", "action") if tag != "link" else ("href",):
                address = attributes.get(key)
                assert (
                    address is None or address in rendering.list_assets() or address == "/publish"
                )


def test_list_shows_latest_studies_first_and_ended_last() -> None:
    known = template("anonml")
    shown = [
        {
            **study_pages.make_card(known, summary_of(known)),
            "title": f"number {i}",
            "status": status,
        }
        for i, status in enumerate(["done", "open", "open"])
    ]
    text = Elements(study_pages.render_studies(shown)).text
    assert text.index("number 2") < text.index("number 1") < text.index("number 0")
    assert "3 studies at this coordinator, 2 of them open." in text
    assert "This coordinator has no studies yet." in Elements(study_pages.render_studies([])).text


def test_study_page_states_unit_relation_and_adversary_of_price() -> None:
    for protocol in PROTOCOLS:
        known = template(protocol)
        scope = known.statement.scope
        price = study_pages.make_card(known, summary_of(known))["price"]
        assert all(
            word in price
            for word in ("epsilon", scope.unit.value, scope.relation.value, scope.adversary)
        )


def test_goal_is_exact_with_roster() -> None:
    members = tuple(RosterMember(f"site-{i}", identity(i).public_key) for i in range(10))
    known = known_of(Manifest(parse_study_text(read_starter("sdq")), roster=members))
    goal = study_pages.make_goal(known, 10)
    assert (goal.total, goal.needed, goal.is_rounded, goal.enrolled) == (
        "enrolled",
        10,
        False,
        "databases enrolled",
    )


def test_asset_names_contain_hash_of_content() -> None:
    found = rendering.list_assets()
    assert sorted(address.rpartition(".")[2] for address in found) == ["css", "js", "svg"]
    for address, asset in found.items():
        assert hashlib.sha256(asset.content).hexdigest()[:12] in address
    style = rendering.read_asset("style.css")
    assert "url(" not in style and "@import" not in style and "http" not in style
    for colour in ("#0072b2", "#d55e00", "#009e73", "#cc79a7"):
        assert colour in style


def test_ledger_page_needs_no_other_files() -> None:
    cap = {"words": "epsilon 1.4 of 4.0", "spent": 17.5, "used": 35.0, "has_bar": True}
    limits = [
        {"about": HOSTILE, "caps": [cap, {**cap, "words": "cannot be checked", "has_bar": False}]}
    ]
    study = dict.fromkeys(("title", "digest", "recipient", "source", "price"), HOSTILE)
    page = render_ledger(
        {
            "path": HOSTILE,
            "head": "3:ab",
            "records": "3 records",
            "made": "today",
            "limits": limits,
            "note": "A note.",
            "totals": [HOSTILE],
            "pending": [HOSTILE],
            "studies": [{**study, "entries": [HOSTILE]}],
        }
    )
    found = Elements(page)
    assert not [
        tag
        for tag, attributes in found.found
        if tag in ("script", "img", "link", "iframe") or {"src", "style"} & set(attributes)
    ]
    assert page.count("<svg") == 1 and 'width="17.5"' in page and 'width="35.0"' in page
    policy = next(
        attributes["content"]
        for tag, attributes in found.found
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    style = re.search(r"<style>(.*)</style>", page, re.DOTALL)
    assert (
        style is not None
        and rendering.hash_style(style[1]) in (policy or "")
        and "'none'" in (policy or "")
    )
    empty = {"limits": [], "note": None, "totals": [], "pending": [], "studies": []}
    text = Elements(
        render_ledger({"path": "l", "head": "1:a", "records": "1 record", "made": "today", **empty})
    ).text
    assert "No limits: every study is refused." in text and text.count("Nothing.") == 3
