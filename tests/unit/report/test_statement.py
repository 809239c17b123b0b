"""A study on one page: all that those who sign it off must know, in its own words, and nothing that runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from coordinator_cases import manifest_of
from shoal.report import registry_record, statement_page
from shoal.report.registry import to_fill_in
from shoal.report.statement import draft_page
from shoal.study.load import load, parse
from shoal.study.manifest import Manifest
from shoal.study.spec import Study
from shoal.study.templates import PROTOCOLS, study_text
from shoal.study.wording_tokens import statement_of, statement_of_draft
from unit.report.cases import HOSTILE, check_inert

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.toml"))
SHUFFLED = (
    ('trust = "local"', 'trust = "shuffled"'),
    ("epsilon = 2.0", "epsilon = 2.0\ndelta = 1e-6"),
    ("size = 20000", "size = 20000\nhonest_share = 0.9"),
)


def study_of(protocol: str, *edits: tuple[str, str]) -> Study:
    text = study_text(protocol)
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new, 1)
    return parse(text)


def studies() -> dict[str, Study]:
    found = {protocol: parse(study_text(protocol)) for protocol in PROTOCOLS}
    return found | {path.stem: load(path) for path in EXAMPLES}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_page_says_what_the_label_says_and_what_is_kept(protocol: str) -> None:
    manifest = Manifest(parse(study_text(protocol)))
    label = statement_of(manifest)
    page = check_inert(statement_page(manifest))
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
    assert f"unit: {label.scope.unit}" in page.text and f"relation: {label.scope.relation}" in page.text
    assert "of 100" in page.text and "epsilon" in page.text and "delta" in page.text
    assert "no log of requests" in page.text
    assert manifest.digest.hex() in page.text
    assert page.text.count("Name, date, signature") == 3


def test_who_is_trusted_follows_from_the_trust_level() -> None:
    local = check_inert(statement_page(Manifest(study_of("anonml")))).text
    assert "for privacy: nobody else" in local and "a relay" not in local
    shuffled = check_inert(statement_page(Manifest(study_of("anonml", *SHUFFLED)))).text
    assert "a relay of somebody else that shuffles and does not tell, and 90 % honest people" in shuffled
    sums = check_inert(statement_page(Manifest(study_of("sdq")))).text
    assert "at most 3 of the 10 databases side with the miner" in sums and "each organisation, with the rows that it holds already" in sums


def test_what_is_kept_follows_from_the_protocol() -> None:
    kept = {protocol: check_inert(statement_page(Manifest(study_of(protocol)))).text for protocol in PROTOCOLS}
    assert "each answer, until it is folded into counts a moment later" in kept["anonml"] and "keys that registered" in kept["anonml"]
    assert "each update, until it is merged" in kept["ddml"] and "SHA-256 of each key that enrolled, for good" in kept["ddml"]
    assert "masked numbers of a round, until they are summed" in kept["sdq"]
    assert "what is released stays" in kept["pfds"]


def test_a_study_that_is_served_by_tokens_is_described_as_one() -> None:
    manifest = manifest_of("anonml")
    page = check_inert(statement_page(manifest))
    assert statement_of(manifest).leaves in page.text
    assert f"Study {manifest.digest.hex()}. Every word above follows from the study with this digest" in page.text


def test_a_draft_is_worded_as_it_will_be_served_and_claims_no_served_digest() -> None:
    for protocol in ("anonml", "sdq"):
        draft = Manifest(study_of(protocol))
        text, label = check_inert(draft_page(draft)).text, statement_of_draft(draft)
        assert label.leaves in text and label.seen_by in text and label.undo in text and draft.digest.hex() in text
        assert "names no digest that is served" in text and "print /studies/DIGEST/statement at its coordinator" in text
        assert "Every word above follows" not in text
    anonml = Manifest(study_of("anonml"))
    assert "a token without your name" in check_inert(draft_page(anonml)).text
    tickets = check_inert(draft_page(anonml, tickets=True)).text
    assert "a ticket without your name" in tickets and "Every word above follows from the study file with this digest" in tickets


@pytest.mark.parametrize("hostile", [words for words in HOSTILE if all(char.isprintable() for char in words)])
def test_words_of_strangers_are_inert(hostile: str) -> None:
    content = study_of("anonml").content()
    content |= {"title": hostile[:200], "purpose": hostile[:4000], "contact": hostile[:200]}
    content["label"]["name"] = hostile[:200]
    manifest = Manifest(Study.from_content(content))
    check_inert(statement_page(manifest))
    assert registry_record(manifest)["deployment"]["basic"]["intended_use"] == hostile[:4000]


def test_the_same_study_gives_the_same_bytes_and_another_one_others() -> None:
    one, other = (Manifest(study_of("anonml", *edits)) for edits in ((), (("epsilon = 2.0", "epsilon = 1.5"),)))
    assert statement_page(one) == statement_page(one) != statement_page(other)


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed, so that nothing can be printed")
def test_it_prints_on_one_page(tmp_path: Path) -> None:
    found = studies()
    long = found["nursery-sdq-paper"].content() | {"purpose": "Long words about what it is for. " * 60}
    chosen = {name: found[name] for name in ("anonml", "sdq", "pfds", "nursery-sdq-paper")} | {"long": Study.from_content(long)}
    for name, study in chosen.items():
        page, printed = tmp_path / f"{name}.html", tmp_path / f"{name}.pdf"
        page.write_text(draft_page(Manifest(study)), "utf-8")
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
        subprocess.run(
            [*command, "--no-pdf-header-footer", f"--print-to-pdf={printed}", page.as_uri()], check=True, capture_output=True, timeout=120
        )
        assert len(re.findall(rb"/Type\s*/Page[^s]", printed.read_bytes())) == 1, name


FIELDS = {
    "basic": ["name", "data_curators", "description", "intended_use", "data_product_type", "data_product_region", "data_product_sector"],
    "dp_variant": ["variant_name", "data_domain", "unprotected_quantities"],
    "privacy_loss": ["privacy_unit", "privacy_unit_details", "number_of_privacy_units", "privacy_parameters", "privacy_parameters_details"],
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


@pytest.mark.parametrize("name", studies())
def test_a_record_has_the_fields_of_the_registry(name: str) -> None:
    study = studies()[name]
    manifest = Manifest(study)
    record, label = registry_record(manifest), statement_of(manifest)
    deployment = record["deployment"]
    assert list(deployment) == list(FIELDS)
    for section, fields in FIELDS.items():
        assert set(fields) <= set(deployment[section])
    assert deployment["privacy_loss"]["privacy_parameters"] == dict(zip(("epsilon", "delta"), label.everything, strict=True))
    assert deployment["dp_variant"]["variant_name"] == ("Pure DP" if label.delta == 0 and label.shuffled is None else "Approximate DP")
    assert deployment["deployment_model"]["model_name"] == {"local": "Local", "shuffled": "Shuffle", "secure-sum": "Federated"}[study.trust]
    assert (deployment["deployment_model"]["access_type"] == "Interactive") == (study.queries is not None)
    assert label.scope.adversary in deployment["privacy_loss"]["privacy_unit_details"]
    missing = list(to_fill_in(record))
    assert "deployment.basic.data_curators.0.data_curator_type" in missing
    assert ("deployment.privacy_loss.number_of_privacy_units" in missing) == (study.data is not None)


def test_one_weight_is_not_the_unit_of_a_record() -> None:
    record = registry_record(Manifest(study_of("ddml", ('unit = "update"', 'unit = "weight"'))))
    loss = record["deployment"]["privacy_loss"]
    assert loss["privacy_unit"] == "everything that one device sends" and loss["privacy_parameters"]["epsilon"] == 29 * 4.0
