"""``shoal audit``: its output and its exit codes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from shoal.audit import bound, ddml, mechanisms
from shoal.audit import study as studies
from shoal.cli import audit
from shoal.cli.main import run
from shoal.entropy import SystemEntropy
from shoal.study.starters import read_starter
from tests.unit.audit.leaky_peers import LabelInId

FAST = ["--samples", "20000"]


@pytest.fixture
def seeded(monkeypatch, entropy):
    """Draw from a seeded stream.

    At a confidence of 0.999 a fresh one would call one honest run of a thousand broken.
    """
    monkeypatch.setattr(audit, "SystemEntropy", lambda: entropy)


@pytest.fixture
def few(monkeypatch):
    """Allow fewer peers than a user may ask for."""
    monkeypatch.setattr(bound, "MIN_SAMPLES", 50)


def test_audit_draws_from_the_operating_system():
    """At this confidence an honest mechanism is called broken at most once in a billion runs."""
    assert audit.SystemEntropy is SystemEntropy
    assert (
        run(
            [
                "audit",
                "mechanism",
                "discrete-laplace",
                "--samples",
                "1000",
                "--confidence",
                "0.999999999",
            ]
        )
        == 0
    )


def test_audit_prints_the_claim_with_its_scope_and_the_bound_with_its_confidence(seeded, capsys):
    assert run(["audit", "mechanism", "discrete-laplace", *FAST]) == 0
    printed = capsys.readouterr().out
    for part in (
        "claim     epsilon 1.0, delta 0",
        "unit      record",
        "relation  add-remove",
        "against   all who read the release",
        "bound     epsilon at least 0.",
        "with confidence 0.999",
        "samples   20000 of each",
        "verdict   consistent",
        "next      shoal audit mechanism discrete-laplace --epsilon 1.0 --cardinality 16 "
        "--samples 80000",
    ):
        assert part in printed


def test_audit_json_is_one_object(seeded, capsys):
    assert (
        run(
            [
                "audit",
                "mechanism",
                "random-response",
                "--epsilon",
                "2",
                "--cardinality",
                "4",
                *FAST,
                "--json",
            ]
        )
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert data["mechanism"] == "random-response"
    assert (data["unit"], data["relation"], data["adversary"]) == ("person", "replace", "everyone")
    assert data["verdict"] == "consistent"
    assert 1.5 < data["bound"] < data["epsilon"] <= 2
    assert (data["samples"], data["confidence"]) == (20000, 0.999)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_broken_claim_has_exit_code_7(seeded, monkeypatch, capsys, flags):
    honest = mechanisms.make_target("discrete-laplace", 2.0, 16)
    claimed = mechanisms.make_target("discrete-laplace", 1.0, 16).event
    monkeypatch.setitem(
        mechanisms.TARGETS, "discrete-laplace", lambda epsilon, m: replace(honest, event=claimed)
    )
    assert run(["audit", "mechanism", "discrete-laplace", *FAST, *flags]) == 7
    printed = capsys.readouterr().out
    assert json.loads(printed)["verdict"] == "broken" if flags else "verdict   BROKEN" in printed


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nothing"], "There is no mechanism 'nothing'"),
        (["pq", "--epsilon", "0"], "epsilon = 0.0 cannot be used"),
        (["pq", "--cardinality", "1"], "cardinality = 1 cannot be used"),
        (["pq", "--samples", "3"], "3 samples"),
        (["pq", "--confidence", "1"], "A confidence of 1.0"),
        (["pq", "--samples", "many"], "many"),
    ],
)
def test_invalid_arguments_have_exit_code_2_and_a_sentence(arguments, part, capsys):
    assert run(["audit", "mechanism", *arguments]) == 2
    assert part in capsys.readouterr().err


def test_help_names_each_mechanism(capsys):
    run(["audit", "mechanism", "--help"])
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert all(name in printed for name in mechanisms.TARGETS)


@pytest.fixture
def study_file(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(read_starter("anonml"), encoding="utf-8")
    return path


@pytest.mark.untraced
def test_audit_study_compares_with_the_label(study_file, seeded, capsys):
    assert run(["audit", "study", str(study_file), "--samples", "1000"]) == 0
    printed = capsys.readouterr().out
    for part in (
        "study     Who finishes the course?",
        "claim     epsilon 2.0, delta 0",
        "unit      person",
        "relation  replace",
        "against   everyone",
        "ledger    charges epsilon 2.0 to a peer",
        "packets   at most 1 from a peer, in 1 phase",
        "bound     epsilon at least 1.",
        "samples   1000 peers with each of three rows",
        "seen in   the answers, by peers with ",
        "tests     15; the confidence holds for all of them together",
        "replays   150 with neighbouring rows: all that leaves outside the reports is equal",
        "limits    a lower bound is no proof",
        "verdict   consistent",
        f"next      shoal check {study_file}",
    ):
        assert part in printed


@pytest.mark.untraced
def test_audit_study_json_is_one_object(study_file, seeded, few, capsys):
    assert (
        run(
            [
                "audit",
                "study",
                str(study_file),
                "--samples",
                "2000",
                "--confidence",
                "0.99",
                "--json",
            ]
        )
        == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert (data["unit"], data["relation"], data["adversary"], data["epsilon"], data["delta"]) == (
        "person",
        "replace",
        "everyone",
        2,
        0,
    )
    assert 1 < data["bound"] <= 2
    assert (data["ledger"], data["packets"], data["phases"], data["verdict"]) == (
        2,
        1,
        1,
        "consistent",
    )
    assert (data["samples"], data["confidence"], data["title"]) == (
        2000,
        0.99,
        "Who finishes the course?",
    )
    assert data["seen_in"] == "the answers"
    assert len(set(data["rows"])) == 2
    assert (data["tests"], data["replays"], data["leak"]) == (15, 300, None)


def test_study_with_a_leak_outside_the_reports_has_exit_code_7(
    study_file, seeded, few, monkeypatch, capsys
):
    study_file.write_text(read_starter("ddml"), encoding="utf-8")
    monkeypatch.setattr(ddml, "DDMLPeer", LabelInId)
    # So few samples that no bound can be above the claim.
    arguments = ["audit", "study", str(study_file), "--samples", "50"]
    assert run(arguments) == 7
    printed = capsys.readouterr().out
    for part in (
        "replays   the field id of ddml.update differs, by peers with highest values and first",
        "verdict   BROKEN: outside the reports, what leaves depends on the rows: the field id of",
    ):
        assert part in printed
    assert run([*arguments, "--json"]) == 7
    data = json.loads(capsys.readouterr().out)
    assert (data["verdict"], data["replays"]) == ("broken", 1)
    assert data["leak"] == "the field id of ddml.update"


@pytest.mark.untraced
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_study_that_reveals_more_than_its_label_has_exit_code_7(
    study_file, seeded, few, monkeypatch, capsys, flags
):
    honest = studies.compute_claim
    monkeypatch.setattr(studies, "compute_claim", lambda study: replace(honest(study), epsilon=0.5))
    assert run(["audit", "study", str(study_file), "--samples", "400", *flags]) == 7
    printed = capsys.readouterr().out
    assert (
        json.loads(printed)["verdict"] == "broken"
        if flags
        else "verdict   BROKEN: the bound is above the claim" in printed
    )


def test_audit_study_of_devices_compares_with_the_label(study_file, seeded, few, capsys):
    study_file.write_text(read_starter("ddml"), encoding="utf-8")
    assert run(["audit", "study", str(study_file), "--samples", "60"]) == 0
    printed = capsys.readouterr().out
    for part in (
        "claim     epsilon 4.0, delta 0",
        "unit      update",
        "against   everyone who sees an update",
        "ledger    charges epsilon 4.0 to a peer",
        "packets   at most 1 from a peer\n",
        "samples   60 peers with each of two rows, at each of two models",
        "seen in   all updates, by peers with highest values and first label or with highest "
        "values",
        "verdict   consistent",
    ):
        assert part in printed


@pytest.mark.untraced
def test_audit_study_of_databases_compares_with_the_label(study_file, seeded, few, capsys):
    study_file.write_text(read_starter("sdq"), encoding="utf-8")
    assert run(["audit", "study", str(study_file), "--samples", "200"]) == 0
    printed = capsys.readouterr().out
    for part in (
        "claim     epsilon 1.0, delta 0",
        "unit      person",
        "relation  add-remove",
        "against   the miner and up to 3 colluding databases",
        "ledger    charges epsilon 1.0 to a peer",
        "samples   200 studies with each of two tables, 3 of them in full, with messages and "
        "secure sums",
        "by peers with all persons but one or with all persons",
        "verdict   consistent",
    ):
        assert part in printed


def test_audit_study_of_holders_compares_with_the_label(study_file, seeded, capsys):
    study_file.write_text(read_starter("pfds"), encoding="utf-8")
    assert run(["audit", "study", str(study_file), "--samples", "10000"]) == 0
    printed = capsys.readouterr().out
    for part in (
        "claim     epsilon 1.0, delta 0",
        "unit      record",
        "relation  add-remove",
        "against   all who read the release",
        "ledger    charges epsilon 1.0 to a peer",
        "packets   at most 1 from a peer\n",
        "samples   10000 peers with each of two tables, and 1 in full",
        "seen in   all releases, by peers with all records but one or with all records",
        "verdict   consistent",
    ):
        assert part in printed
