"""The audit of a whole study: its claim, its observations and its verdict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.audit import bound
from shoal.audit.observations import Observation, Observations
from shoal.audit.replay import ReplayResult
from shoal.audit.study import audit_study, compute_claim, evaluate_observations
from shoal.errors import UsageError
from shoal.privacy.accountant import compose_sequential
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.study.loader import parse_study_text
from shoal.study.plan import make_plan
from shoal.study.starters import read_starter
from tests.unit.audit.sdq_studies import make_study as make_sums
from tests.unit.audit.small_studies import BINNED, Choosy, TwiceAsked, make_study, paper_study


@pytest.fixture
def few(monkeypatch):
    """Allow fewer peers than a user may ask for: enough for certain evidence and for ledgers."""
    monkeypatch.setattr(bound, "MIN_SAMPLES", 100)


@pytest.mark.untraced
def test_audit_of_an_honest_study_is_consistent(entropy):
    study = make_study(4.0, BINNED)
    found = audit_study(study, 1000, 0.9, entropy)
    assert found.fault is None
    assert 2 < found.bound.epsilon <= found.claim.epsilon == 4
    assert found.n_tests == 15 and found.bound.alpha == pytest.approx(0.1 / 15)
    assert (found.replay.n, found.replay.leak) == (150, None)
    assert found.bound.n == 500
    assert found.seen_in == "the answers"
    assert (found.packets, found.n_phases, found.charge) == (1, 1, 4 * 10**12)


@pytest.mark.untraced
def test_audit_of_paper_combines_all_answers(entropy):
    """One answer alone could show half of the claim at most."""
    found = audit_study(paper_study(4.0, BINNED), 1000, 0.9, entropy)
    assert found.fault is None
    assert 2 < found.bound.epsilon <= 4
    assert found.packets == 2


@pytest.mark.untraced
def test_audit_detects_a_second_answer_in_the_packets(entropy):
    found = audit_study(make_study(2.0), 1000, 0.9, entropy, TwiceAsked)
    assert found.bound.epsilon > found.claim.epsilon == 2
    assert found.fault == "the bound is above the claim: a peer reveals more than the label states"


def test_audit_detects_a_question_chosen_by_the_row(few, entropy):
    found = audit_study(make_study(2.0), 200, 0.9, entropy, Choosy)
    assert found.seen_in == "the choice of questions"
    assert found.rows[0].endswith("first class")
    assert found.rows[1].endswith("last class")
    assert found.bound.epsilon > found.claim.epsilon
    assert found.charge == 2 * 10**12


@pytest.mark.untraced
def test_audit_detects_a_second_answer_in_the_ledger_with_few_samples(few, entropy):
    found = audit_study(make_study(0.1), 100, 0.999, entropy, TwiceAsked)
    assert found.bound.epsilon <= found.claim.epsilon
    assert (
        found.fault
        == "the ledger charges more than the claim: a peer spends more than the label states"
    )
    assert replace(found, charge=10**11).fault is None


def test_claim_is_that_of_the_label_without_free_queries():
    study = make_study(1.0, queries={"features": ["age"], "n_queries": 2, "epsilon_release": 0.25})
    assert make_plan(study).loss.epsilon == 1.5
    assert compute_claim(study).epsilon == 1


def test_claim_under_paper_accounting_is_the_plain_sum():
    study = paper_study(1.0, accounting="paper")
    assert (
        compute_claim(study) == make_plan(study).loss == compose_sequential(make_plan(study).events)
    )
    assert compute_claim(study).epsilon == 1.5


def test_audit_of_holders_observes_all_that_one_shares(entropy):
    found = audit_study(parse_study_text(read_starter("pfds")), 20_000, 0.9, entropy)
    assert found.fault is None
    assert 0.3 < found.bound.epsilon <= found.claim.epsilon == 1
    assert (found.packets, found.n_phases, found.charge) == (1, None, 10**12)


@pytest.mark.parametrize(
    ("is_part", "claimed", "told"), [(False, 1.0, "that"), (True, 1.0, "this"), (True, 0.1, "that")]
)
def test_part_is_reported_only_if_it_is_above_its_claim(is_part, claimed, told):
    """It is nearer to its claim than everything together is to its own."""
    claim = compute_claim(make_study(1.0))
    first, second = np.repeat([0, 1], [600, 400]), np.repeat([0, 1], [400, 600])
    mixed = np.random.default_rng(1).permutation(1000)
    faint, clear = (
        Observation(name, ("a", "b"), first[mixed], second[mixed], claim)
        for name in ("this", "that")
    )
    looks = (
        replace(faint, claim=replace(claim, epsilon=9.0)),
        replace(clear, claim=replace(claim, epsilon=claimed), is_part=is_part),
    )
    found = evaluate_observations(
        Observations(looks, 0, 0, None, "two rows", ReplayResult(7)), 0.9, 0
    )
    assert (found.seen_in, found.n_tests, found.replay.n) == (told, 2, 7)
    assert (found.fault is None) == (claimed == 1.0)


def test_audit_of_sums_runs_all_databases(entropy):
    found = audit_study(make_sums(4.0, sdq={"learner": "naive-bayes"}), 2000, 0.9, entropy)
    assert found.fault is None
    assert 2.5 < found.bound.epsilon <= found.claim.epsilon == 4
    assert (found.packets, found.n_phases, found.charge) == (1, None, 4 * 10**12)


@pytest.mark.parametrize(("samples", "confidence"), [(10, 0.999), (1000, 1.0)])
def test_audit_rejects_too_few_samples(samples, confidence, entropy):
    with pytest.raises(UsageError, match="USAGE-001"):
        audit_study(make_study(1.0), samples, confidence, entropy)


class Cheap(AnonMLPeer):
    """A peer that reserves less in its ledger than it spends."""

    def price(self, question):
        return replace(super().price(question), epsilon=0.1)


@pytest.mark.untraced
def test_audit_detects_a_ledger_that_charges_too_little(few, entropy):
    found = audit_study(make_study(2.0), 100, 0.9, entropy, Cheap)
    assert found.bound.epsilon <= found.claim.epsilon
    assert (
        found.fault
        == "the ledger charges less than the claim: a peer spends more than its ledger states"
    )
