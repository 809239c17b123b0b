"""The audit of a whole study: its claim, what it compares, and what it calls broken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.audit import bound
from shoal.audit.looks import Look, Seen
from shoal.audit.studies import audit_study, claim_of, judge
from shoal.errors import UsageError
from shoal.privacy.accountant import sequential
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.study.load import parse
from shoal.study.plan import make_plan
from shoal.study.templates import study_text
from unit.audit.sdq_studies import make_study as make_sums
from unit.audit.small_studies import BINNED, Choosy, TwiceAsked, make_study, paper_study


@pytest.fixture
def few(monkeypatch):
    """Fewer peers than a user may ask for: enough for what they tell beyond doubt, or by their ledgers."""
    monkeypatch.setattr(bound, "MIN_SAMPLES", 100)


@pytest.mark.untraced
def test_an_honest_study_is_consistent(entropy):
    study = make_study(4.0, BINNED)
    found = audit_study(study, 1000, 0.9, entropy)
    assert found.fault is None
    assert 2 < found.bound.epsilon <= found.claim.epsilon == 4
    assert found.bound.alpha == pytest.approx(0.1 / 6)
    assert found.bound.n == 500
    assert found.seen_in == "what was answered"
    assert (found.packets, found.n_phases, found.charged) == (1, 1, 4 * 10**12)


@pytest.mark.untraced
def test_the_papers_answers_are_taken_together(entropy):
    """One answer alone could show half of the claim at most."""
    found = audit_study(paper_study(4.0, BINNED), 1000, 0.9, entropy)
    assert found.fault is None
    assert 2 < found.bound.epsilon <= 4
    assert found.packets == 2


@pytest.mark.untraced
def test_a_second_answer_is_found_in_the_packets(entropy):
    found = audit_study(make_study(2.0), 1000, 0.9, entropy, TwiceAsked)
    assert found.bound.epsilon > found.claim.epsilon == 2
    assert found.fault == "the bound is above the claim, so a peer reveals more than the label says"


def test_a_question_that_the_row_has_chosen_is_found_in_its_number(few, entropy):
    found = audit_study(make_study(2.0), 200, 0.9, entropy, Choosy)
    assert found.seen_in == "which questions were answered"
    assert found.rows[0].endswith("first class")
    assert found.rows[1].endswith("last class")
    assert found.bound.epsilon > found.claim.epsilon
    assert found.charged == 2 * 10**12


@pytest.mark.untraced
def test_a_second_answer_is_found_in_the_ledger_where_samples_are_too_few(few, entropy):
    found = audit_study(make_study(0.1), 100, 0.999, entropy, TwiceAsked)
    assert found.bound.epsilon <= found.claim.epsilon
    assert found.fault == "the ledger counts more than the claim, so a peer spends more than the label says"
    assert replace(found, charged=10**11).fault is None


def test_the_claim_is_the_label_s_without_free_questions():
    study = make_study(1.0, queries={"features": ["age"], "n_queries": 2, "epsilon_release": 0.25})
    assert make_plan(study).loss.epsilon == 1.5
    assert claim_of(study).epsilon == 1


def test_under_the_paper_s_accounting_the_claim_is_the_plain_sum():
    study = paper_study(1.0, accounting="paper")
    assert claim_of(study) == make_plan(study).loss == sequential(make_plan(study).events)
    assert claim_of(study).epsilon == 1.5


def test_a_study_of_holders_is_audited_by_all_that_one_shares(entropy):
    found = audit_study(parse(study_text("pfds")), 20_000, 0.9, entropy)
    assert found.fault is None
    assert 0.3 < found.bound.epsilon <= found.claim.epsilon == 1
    assert (found.packets, found.n_phases, found.charged) == (1, None, 10**12)


@pytest.mark.parametrize(("is_part", "claimed", "told"), [(False, 1.0, "that"), (True, 1.0, "this"), (True, 0.1, "that")])
def test_a_part_is_told_of_only_where_it_is_above_its_own_claim(is_part, claimed, told):
    """Though it is nearer to its claim than all together to theirs."""
    claim = claim_of(make_study(1.0))
    first, second = np.repeat([0, 1], [600, 400]), np.repeat([0, 1], [400, 600])
    mixed = np.random.default_rng(1).permutation(1000)
    faint, clear = (Look(name, ("a", "b"), first[mixed], second[mixed], claim) for name in ("this", "that"))
    looks = (replace(faint, claim=replace(claim, epsilon=9.0)), replace(clear, claim=replace(claim, epsilon=claimed), is_part=is_part))
    found = judge(Seen(looks, 0, 0, None, "two rows"), 0.9, 0)
    assert found.seen_in == told
    assert (found.fault is None) == (claimed == 1.0)


def test_a_study_of_sums_is_audited_with_all_its_databases(entropy):
    found = audit_study(make_sums(4.0, sdq={"learner": "naive-bayes"}), 2000, 0.9, entropy)
    assert found.fault is None
    assert 2.5 < found.bound.epsilon <= found.claim.epsilon == 4
    assert (found.packets, found.n_phases, found.charged) == (1, None, 4 * 10**12)


@pytest.mark.parametrize(("samples", "confidence"), [(10, 0.999), (1000, 1.0)])
def test_an_audit_that_could_say_nothing_is_refused(samples, confidence, entropy):
    with pytest.raises(UsageError, match="USAGE-001"):
        audit_study(make_study(1.0), samples, confidence, entropy)


class Cheap(AnonMLPeer):
    """Tells its ledger less than it spends."""

    def price(self, question):
        return replace(super().price(question), epsilon=0.1)


@pytest.mark.untraced
def test_a_ledger_that_counts_too_little_is_found(few, entropy):
    found = audit_study(make_study(2.0), 100, 0.9, entropy, Cheap)
    assert found.bound.epsilon <= found.claim.epsilon
    assert found.fault == "the ledger counts less than the claim, so a peer spends more than its ledger says"
