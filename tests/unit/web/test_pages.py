"""Pages from plain data: what they say, that words of strangers stay words, and files that are named by what is in them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from coordinator_cases import identity
from participants import manifest_of
from shoal.coordinator.keys import Keys
from shoal.study.load import parse
from shoal.study.manifest import Manifest, Member
from shoal.study.plan import make_plan
from shoal.study.templates import study_text
from shoal.study.wording_tokens import statement_of
from shoal.web import assets, facts, views
from shoal.web.facts import Known
from shoal.web.ledger import ledger_page

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{ 7 * 7 }}\u202e"
PROTOCOLS = ("anonml", "ddml", "sdq", "pfds")
NOTHING = {"status": "open", "reason": None, "enrolled": 0, "accepted": 0, "refused": {}}


def known_of(manifest: Manifest) -> Known:
    plan = make_plan(manifest.study, manifest.digest)
    return Known(manifest, plan, statement_of(manifest, plan))


def template(protocol: str) -> Known:
    return known_of(Manifest(parse(study_text(protocol))))


def summary_of(known: Known, **more: Any) -> dict[str, Any]:
    digest = known.manifest.digest.hex()
    return {"digest": digest, "short": known.manifest.short, "status": "open", "has_roster": False, "by_invitation": False, **more}


def page_of(known: Known, n_named: int = 0, ends: str | None = "soon", phases: Any = (), **progress: Any) -> str:
    described = facts.described(known, summary_of(known), {**NOTHING, **progress}, n_named=n_named, ends=ends, phases=phases)
    return views.study_page(described)


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
def test_a_study_on_its_page(protocol: str) -> None:
    known = template(protocol)
    n_named = {"sdq": 10, "pfds": 20}.get(protocol, 0)
    page = Elements(page_of(known, n_named, enrolled=10, accepted=20, refused={"MSG-002": 30, "ANONML-001": 10}))
    for words in (known.statement.title, known.statement.purpose, known.manifest.digest.hex(), "It ends soon.", "30 × MSG-002"):
        assert words in page.text
    for head in ("Leaves here", "Protects", "Guarantee"):
        assert head in page.text
        assert all(" ".join(line.split()) in page.text for line in dict(known.statement.rows())[head])
    for feature in known.manifest.study.feature:
        assert feature.name in page.text
    [bar] = [attributes for tag, attributes in page.found if tag == "progress"]
    total = {"anonml": ("accepted", 2000), "ddml": ("accepted", 50_000), "sdq": ("enrolled", 10), "pfds": ("enrolled", 20)}[protocol]
    assert (bar["data-total"], int(bar["max"] or 0)) == total
    assert int(bar["value"] or 0) == {"enrolled": 10, "accepted": 20}[total[0]]
    assert ("rounded down" in page.text) == (protocol in ("anonml", "ddml"))


def test_odds_are_drawn_as_they_are_worded() -> None:
    known = template("anonml")
    [one] = facts.odds_of(known.statement)
    assert (one["from"], one["to"]) == (50, 88.1) and "88.1 of 100" in one["words"]
    page = page_of(known)
    assert '<rect class="odds-after" width="88.1"' in page and "A guess of 50 of 100 becomes at most 88.1 of 100." in page


def test_a_page_vouches_for_nothing_that_it_cannot_know_and_warns_as_the_plan_does() -> None:
    known = template("anonml")
    text = Elements(page_of(known)).text
    assert "The analyst vouches that they were not read from anybody’s rows." in text and "Its plan warns." not in text
    assert 'class="results" data-when="done" hidden' in page_of(known)
    warned = facts.described(known, summary_of(known), NOTHING, n_named=0, ends=None, phases=(), warnings=["Most of it is <b>noise</b>."])
    assert "Its plan warns. Most of it is <b>noise</b>." in Elements(views.study_page(warned)).text


@pytest.mark.parametrize("status", ["done", "failed", "closed"])
def test_a_study_that_has_ended(status: str) -> None:
    page = page_of(template("anonml"), ends=None, status=status, reason=None if status == "done" else "Too few <b>.")
    assert "data-events" not in page and 'noscript><p class="hint">Without' not in page
    assert ("What was learned" in page) == ("/report" in page) == ("/model" in page) == (status == "done")
    assert 'class="results" data-when="done" hidden' not in page
    assert ("Too few &lt;b&gt;." in page) == (status != "done")
    assert 'aria-labelledby="join" data-when="open" hidden' in page


def test_phases_relay_epoch_and_invitations() -> None:
    draft = template("anonml").manifest
    keys = Keys(bytes(32)).issuing
    issuer_key, gateway_key = bytes.fromhex(keys.issuer_key), bytes.fromhex(keys.gateway_key)
    manifest = replace(draft, issuer_key=issuer_key, gateway_key=gateway_key, relay="https://relay.example.org", epoch="spring <b>")
    known = known_of(manifest)
    described = facts.described(
        known,
        summary_of(known, by_invitation=True),
        NOTHING,
        n_named=0,
        ends="soon",
        phases=[{"number": 1, "of": 3, "opened": "yesterday", "closes": "tomorrow"}],
    )
    text = Elements(views.study_page(described)).text
    for words in (
        "Phase 1 of 3",
        "https://relay.example.org",
        "spring <b>",
        "--invitation CODE",
        "whoever has an invitation",
        "people registered",
    ):
        assert words in text


def test_a_roster_and_long_lists() -> None:
    study = manifest_of("anonml").study
    wide = study.model_copy(
        update={"feature": study.feature * 40, "label": study.label.model_copy(update={"values": tuple("abcdefghijkl")})}
    )
    known = replace(known_of(Manifest(study)), manifest=Manifest(wide))
    text = Elements(page_of(known)).text
    assert "And 20 more, which the manifest has." in text and "one of a, b, c, d, e, f, g, h and 4 more" in text
    described = facts.described(known, summary_of(known, has_roster=True), NOTHING, n_named=3, ends=None, phases=())
    assert described["who"] == "those on its roster"


def test_texts_are_described() -> None:
    known = known_of(manifest_of("ddml", 100, feature=[{"name": "query", "buckets": 4096}]))
    assert "words, in 4,096 buckets" in Elements(page_of(known)).text


@pytest.fixture(scope="module")
def hostile() -> Known:
    words = HOSTILE.replace("\u202e", "")
    values = (words[:60], "no")
    text = {"title": words, "purpose": words, "contact": words}
    feature = [{"name": words[:60], "values": list(values)}]
    return known_of(manifest_of("anonml", **text, feature=feature, label={"name": f"{words[:50]}y", "values": list(values)}))


def test_words_of_strangers_stay_words(hostile: Known) -> None:
    digest = hostile.manifest.digest.hex()
    problem = {"code": "SPEC-001", "title": HOSTILE, "detail": HOSTILE, "fix": HOSTILE}
    given = dict.fromkeys(views.PUBLISH_FIELDS, f"</textarea>{HOSTILE}")
    pages = {
        "studies": views.studies_page([facts.listed(hostile, summary_of(hostile))]),
        "study": page_of(hostile, reason=HOSTILE, status="failed", ends=HOSTILE),
        "label": views.label_page(hostile, digest),
        "publish": views.publish_page(given, problem),
        "close": views.close_page(digest, "short", HOSTILE, "open", problem),
        "notice": views.notice_page("Not here", problem),
    }
    for name, page in pages.items():
        found = Elements(page)
        assert "alert(1)" in page, name
        scripts = [attributes for tag, attributes in found.found if tag == "script"]
        assert all(set(attributes) == {"src", "defer"} for attributes in scripts), name
        assert {attributes["src"] for tag, attributes in found.found if tag == "img"} == {assets.address_of("icon.svg")}, name
        assert not [key for _, attributes in found.found for key in attributes if key.startswith("on") or key == "style"], name
        assert "49" not in found.text or name in ("study", "studies", "label", "close"), name
        assert "{{ 7 * 7 }}" in found.text or name == "notice", name
        assert "\u202e" not in page or name in ("publish", "close", "notice"), name


def test_everything_that_a_page_loads_is_its_own() -> None:
    pages = [page_of(template("ddml")), views.studies_page([]), views.publish_page(), views.label_page(template("sdq"), "00" * 32)]
    for page in pages:
        for tag, attributes in Elements(page).found:
            for key in ("src", "action") if tag != "link" else ("href",):
                address = attributes.get(key)
                assert address is None or address in assets.served() or address == "/publish"


def test_the_latest_studies_come_first_and_ended_ones_last() -> None:
    known = template("anonml")
    shown = [
        {**facts.listed(known, summary_of(known)), "title": f"number {i}", "status": status}
        for i, status in enumerate(["done", "open", "open"])
    ]
    text = Elements(views.studies_page(shown)).text
    assert text.index("number 2") < text.index("number 1") < text.index("number 0")
    assert "3 studies at this coordinator, 2 of them open." in text
    assert "There is no study here yet." in Elements(views.studies_page([])).text


def test_a_price_has_its_unit_relation_and_adversary() -> None:
    for protocol in PROTOCOLS:
        known = template(protocol)
        scope = known.statement.scope
        price = facts.listed(known, summary_of(known))["price"]
        assert all(word in price for word in ("epsilon", scope.unit.value, scope.relation.value, scope.adversary))


def test_rosters_make_the_goal_exact() -> None:
    members = tuple(Member(f"site-{i}", identity(i).public) for i in range(10))
    known = known_of(Manifest(parse(study_text("sdq")), roster=members))
    goal = facts.goal_of(known, 10)
    assert (goal.total, goal.needed, goal.is_rounded, goal.enrolled) == ("enrolled", 10, False, "databases enrolled")


def test_files_are_named_by_what_is_in_them() -> None:
    found = assets.served()
    assert sorted(address.rpartition(".")[2] for address in found) == ["css", "js", "svg"]
    for address, asset in found.items():
        assert hashlib.sha256(asset.content).hexdigest()[:12] in address
    style = assets.text_of("style.css")
    assert "url(" not in style and "@import" not in style and "http" not in style
    for colour in ("#0072b2", "#d55e00", "#009e73", "#cc79a7"):
        assert colour in style


def test_a_ledger_by_itself() -> None:
    cap = {"words": "epsilon 1.4 of 4.0", "spent": 17.5, "used": 35.0, "has_bar": True}
    limits = [{"about": HOSTILE, "caps": [cap, {**cap, "words": "cannot be kept", "has_bar": False}]}]
    study = dict.fromkeys(("title", "digest", "recipient", "source", "price"), HOSTILE)
    page = ledger_page(
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
    assert not [tag for tag, attributes in found.found if tag in ("script", "img", "link", "iframe") or {"src", "style"} & set(attributes)]
    assert page.count("<svg") == 1 and 'width="17.5"' in page and 'width="35.0"' in page
    policy = next(attributes["content"] for tag, attributes in found.found if attributes.get("http-equiv") == "Content-Security-Policy")
    style = re.search(r"<style>(.*)</style>", page, re.DOTALL)
    assert style is not None and assets.style_hash(style[1]) in (policy or "") and "'none'" in (policy or "")
    empty = {"limits": [], "note": None, "totals": [], "pending": [], "studies": []}
    text = Elements(ledger_page({"path": "l", "head": "1:a", "records": "1 record", "made": "today", **empty})).text
    assert "None: everything is refused." in text and text.count("Nothing.") == 3
