"""``shoal audit mechanism``: what it prints, and its exit code."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from shoal.audit import mechanisms
from shoal.cli.main import run

FAST = ["--samples", "20000"]


def test_it_prints_the_claim_with_its_scope_and_the_bound_with_its_confidence(capsys):
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
        "next      shoal audit mechanism discrete-laplace --epsilon 1.0 --cardinality 16 --samples 80000",
    ):
        assert part in printed


def test_json_is_one_object(capsys):
    assert run(["audit", "mechanism", "random-response", "--epsilon", "2", "--cardinality", "4", *FAST, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["mechanism"] == "random-response"
    assert (data["unit"], data["relation"], data["adversary"]) == ("person", "replace", "everyone")
    assert data["verdict"] == "consistent"
    assert 1.5 < data["bound"] < data["epsilon"] <= 2
    assert (data["samples"], data["confidence"]) == (20000, 0.999)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_broken_claim_is_exit_code_7(monkeypatch, capsys, flags):
    honest = mechanisms.subject("discrete-laplace", 2.0, 16)
    claimed = mechanisms.subject("discrete-laplace", 1.0, 16).event
    monkeypatch.setitem(mechanisms.SUBJECTS, "discrete-laplace", lambda epsilon, m: replace(honest, event=claimed))
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
def test_bad_arguments_are_exit_code_2_and_a_sentence(arguments, part, capsys):
    assert run(["audit", "mechanism", *arguments]) == 2
    assert part in capsys.readouterr().err


def test_the_help_names_every_mechanism(capsys):
    run(["audit", "mechanism", "--help"])
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert all(name in printed for name in mechanisms.SUBJECTS)
