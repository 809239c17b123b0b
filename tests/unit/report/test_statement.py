"""The one-page statement: complete, consistent with the label, and without active content."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from shoal.report import make_registry_record, make_statement_page
from shoal.report.registry import list_missing_fields
from shoal.report.statement import make_draft_page
from shoal.study.delivery import make_draft_statement, make_offer_statement
from shoal.study.loader import load_study, parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.registry import PROTOCOLS
from shoal.study.spec import Study
from shoal.study.starters import STARTER_PROTOCOLS, read_starter
from shoal.study.validation import parse_content
from tests.support.coordinator import make_manifest
from tests.unit.report.cases import HOSTILE, check_inert

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.toml"))
SHUFFLED = (
    ('trust = "local"', 'trust = "shuffled"'),
    ("epsilon = 2.0", "epsilon = 2.0\ndelta = 1e-6"),
    ("size = 20000", "size = 20000\nhonest_share = 0.9"),
)


def make_study(protocol: str, *edits: tuple[str, str]) -> Study:
    text = read_starter(protocol)
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    return parse_study_text(text)


def load_studies() -> dict[str, Study]:
    found = {protocol: parse_study_text(read_starter(protocol)) for protocol in STARTER_PROTOCOLS}
    return found | {path.stem: load_study(path) for path in EXAMPLES}


@pytest.mark.parametrize("protocol", STARTER_PROTOCOLS)
def test_statement_page_contains_label_and_retention(protocol: str) -> None:
    manifest = Manifest(parse_study_text(read_starter(protocol)))
    label = make_offer_statement(manifest)
    page = check_inert(make_statement_page(manifest))
    for said in (
        label.title,
        label.purpose,
        label.contact,
        label.leaves,
        label.seen_by,
        label.scope.adversary,
        *label.not_covered,
        label.undo,
    ):
        assert " ".join(said.split()) in page.text
    assert (
        f"unit: {label.scope.unit}" in page.text
        and f"relation: {label.scope.relation}" in page.text
    )
    assert "of 100" in page.text and "epsilon" in page.text and "delta" in page.text
    assert "no log of requests" in page.text
    assert manifest.digest.hex() in page.text
    assert page.text.count("Name, date, signature") == 3


def test_statement_page_names_trusted_parties_of_each_trust() -> None:
    local = check_inert(make_statement_page(Manifest(make_study("anonml")))).text
    assert "for privacy: no one else" in local and "a relay" not in local
    shuffled = check_inert(make_statement_page(Manifest(make_study("anonml", *SHUFFLED)))).text
    assert (
        "an independent relay, which shuffles and does not reveal the order, and 90 % honest "
        "people" in shuffled
    )
    manifest = Manifest(make_study("sdq"))
    sums = check_inert(make_statement_page(manifest)).text
    assert "each organisation, with the rows that it already holds" in sums
    for assumption in make_offer_statement(manifest).rests_on[:-1]:
        assert " ".join(assumption.split()) in sums


def test_statement_page_names_retention_of_each_protocol() -> None:
    kept = {
        protocol: check_inert(make_statement_page(Manifest(make_study(protocol)))).text
        for protocol in STARTER_PROTOCOLS
    }
    for protocol, text in kept.items():
        assert PROTOCOLS[protocol].retention in text
    assert "registered keys" in kept["anonml"]
    assert "the SHA-256 digest of each enrolled key: permanently" in kept["ddml"]


def test_statement_page_of_served_study_describes_tokens() -> None:
    manifest = make_manifest("anonml")
    page = check_inert(make_statement_page(manifest))
    assert make_offer_statement(manifest).leaves in page.text
    assert (
        f"Study {manifest.digest.hex()}. All text above follows from the study with this digest"
        in page.text
    )


def test_draft_page_has_served_label_but_no_served_digest() -> None:
    for protocol in ("anonml", "sdq"):
        draft = Manifest(make_study(protocol))
        text, label = check_inert(make_draft_page(draft)).text, make_draft_statement(draft)
        assert (
            label.leaves in text
            and label.seen_by in text
            and label.undo in text
            and draft.digest.hex() in text
        )
        assert (
            "its digest is not that of the served study" in text
            and "print /studies/DIGEST/statement at its coordinator" in text
        )
        assert "All text above follows" not in text
    anonml = Manifest(make_study("anonml"))
    assert "a token without your name" in check_inert(make_draft_page(anonml)).text
    tickets = check_inert(make_draft_page(anonml, tickets=True)).text
    assert (
        "a ticket without your name" in tickets
        and "All text above follows from the study file with this digest" in tickets
    )


@pytest.mark.parametrize(
    "hostile", [words for words in HOSTILE if all(char.isprintable() for char in words)]
)
def test_hostile_text_in_statement_page_is_inert(hostile: str) -> None:
    content = make_study("anonml").to_content()
    content |= {"title": hostile[:200], "purpose": hostile[:4000], "contact": hostile[:200]}
    content["label"]["name"] = hostile[:200]
    manifest = Manifest(parse_content(content))
    check_inert(make_statement_page(manifest))
    assert make_registry_record(manifest)["deployment"]["basic"]["intended_use"] == hostile[:4000]


def test_statement_page_depends_on_the_study_only() -> None:
    one, other = (
        Manifest(make_study("anonml", *edits))
        for edits in ((), (("epsilon = 2.0", "epsilon = 1.5"),))
    )
    assert make_statement_page(one) == make_statement_page(one) != make_statement_page(other)


@pytest.mark.skipif(
    shutil.which("chromium") is None,
    reason="chromium is not installed, so nothing can be printed",
)
def test_statement_prints_on_one_page(tmp_path: Path) -> None:
    found = load_studies()
    long = found["nursery-sdq-paper"].to_content() | {
        "purpose": "Long words about what it is for. " * 60
    }
    chosen = {name: found[name] for name in ("anonml", "sdq", "pfds", "nursery-sdq-paper")} | {
        "long": parse_content(long)
    }
    for name, study in chosen.items():
        page, printed = tmp_path / f"{name}.html", tmp_path / f"{name}.pdf"
        page.write_text(make_draft_page(Manifest(study)), "utf-8")
        command = [
            "chromium",
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
        ]
        subprocess.run(
            [*command, "--no-pdf-header-footer", f"--print-to-pdf={printed}", page.as_uri()],
            check=True,
            capture_output=True,
            timeout=120,
        )
        assert len(re.findall(rb"/Type\s*/Page[^s]", printed.read_bytes())) == 1, name


FIELDS = {
    "basic": [
        "name",
        "data_curators",
        "description",
        "intended_use",
        "data_product_type",
        "data_product_region",
        "data_product_sector",
    ],
    "dp_variant": ["variant_name", "data_domain", "unprotected_quantities"],
    "privacy_loss": [
        "privacy_unit",
        "privacy_unit_details",
        "number_of_privacy_units",
        "privacy_parameters",
        "privacy_parameters_details",
    ],
    "deployment_model": [
        "model_name",
        "model_name_details",
        "trust_assumptions",
        "actors",
        "release_type",
        "data_source_type",
        "access_type",
    ],
    "implementation": [
        "preprocessing_and_hyperparameter_tuning",
        "mechanisms",
        "composition",
        "post_processing",
        "justification",
        "utility",
    ],
    "administrative": ["evidence_sources", "status", "registry_authors", "tier"],
}
"""Fields of the registry's template, by section."""


@pytest.mark.parametrize("name", load_studies())
def test_registry_record_has_all_fields(name: str) -> None:
    study = load_studies()[name]
    manifest = Manifest(study)
    record, label = make_registry_record(manifest), make_offer_statement(manifest)
    deployment = record["deployment"]
    assert list(deployment) == list(FIELDS)
    for section, fields in FIELDS.items():
        assert set(fields) <= set(deployment[section])
    assert deployment["privacy_loss"]["privacy_parameters"] == dict(
        zip(("epsilon", "delta"), label.everything, strict=True)
    )
    assert deployment["dp_variant"]["variant_name"] == (
        "Pure DP" if label.delta == 0 and label.shuffled is None else "Approximate DP"
    )
    assert (
        deployment["deployment_model"]["model_name"]
        == {"local": "Local", "shuffled": "Shuffle", "secure-sum": "Federated"}[study.trust]
    )
    assert (deployment["deployment_model"]["access_type"] == "Interactive") == (
        study.queries is not None
    )
    assert label.scope.adversary in deployment["privacy_loss"]["privacy_unit_details"]
    missing = list(list_missing_fields(record))
    assert "deployment.basic.data_curators.0.data_curator_type" in missing
    assert ("deployment.privacy_loss.number_of_privacy_units" in missing) == (
        study.data is not None
    )


def test_registry_record_of_unit_weight_covers_everything_sent() -> None:
    record = make_registry_record(
        Manifest(make_study("ddml", ('unit = "update"', 'unit = "weight"')))
    )
    loss = record["deployment"]["privacy_loss"]
    assert (
        loss["privacy_unit"] == "everything that one device sends"
        and loss["privacy_parameters"]["epsilon"] == 29 * 4.0
    )
