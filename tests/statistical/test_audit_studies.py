"""Audits of whole studies of AnonML and SDQ.

The bound for an honest peer is close below its label; the bound for a peer that cheats is above.
The bound's own alpha is that of the test. Sample sizes: in each half there are enough peers that
the bound reaches the asserted share of the claim with more than five standard deviations to spare.
"""

from __future__ import annotations

import pytest

from shoal.audit.study import audit_study
from tests.statistical.harness import statistical
from tests.unit.audit.small_studies import (
    BINNED,
    PLACED,
    Choosy,
    TwiceAsked,
    make_study,
    paper_study,
)

ALPHA = 1e-9
BITS, TABLES, PAPER = make_study(1.0, BINNED[:2]), make_study(2.0), paper_study(3.0, PLACED)


@statistical(alpha=ALPHA)
@pytest.mark.parametrize(
    ("study", "samples", "share"),
    [(BITS, 5000, 0.5), (TABLES, 4000, 0.5), (PAPER, 2000, 0.2)],
    ids=["bits", "tables", "paper"],
)
def test_study_audit_bound_is_close_below_honest_label(study, samples, share, entropy):
    found = audit_study(study, samples, 1 - ALPHA, entropy)
    assert found.fault is None
    assert share * found.claim.epsilon < found.bound.epsilon <= found.claim.epsilon


@pytest.mark.parametrize(
    ("peer", "samples", "seen_in"),
    [(TwiceAsked, 4000, "the answers"), (Choosy, 1000, "the choice of questions")],
)
def test_study_audit_catches_cheating_peer(peer, samples, seen_in, entropy):
    found = audit_study(TABLES, samples, 1 - ALPHA, entropy, peer)
    assert found.bound.epsilon > found.claim.epsilon
    assert found.seen_in == seen_in
