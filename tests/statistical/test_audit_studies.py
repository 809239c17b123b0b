"""Audits of whole studies: an honest peer stays below its label and comes near it; one that cheats goes above.

The bound's own alpha is that of the test. Sample sizes: in each half there are enough peers that the bound reaches the share of the claim
that is asserted with more than five standard deviations to spare.
"""

from __future__ import annotations

import pytest

from shoal.audit.studies import audit_study
from statistical.harness import statistical
from unit.audit.small_studies import BINNED, PLACED, Choosy, TwiceAsked, make_study, paper_study

ALPHA = 1e-9
BITS, TABLES, PAPER = make_study(1.0, BINNED[:2]), make_study(2.0), paper_study(3.0, PLACED)


@statistical(alpha=ALPHA)
@pytest.mark.parametrize(
    ("study", "samples", "share"),
    [(BITS, 5000, 0.5), (TABLES, 4000, 0.5), (PAPER, 2000, 0.2)],
    ids=["bits", "tables", "paper"],
)
def test_the_bound_is_near_an_honest_label_and_not_above_it(study, samples, share, entropy):
    found = audit_study(study, samples, 1 - ALPHA, entropy)
    assert found.fault is None
    assert share * found.claim.epsilon < found.bound.epsilon <= found.claim.epsilon


@pytest.mark.parametrize(
    ("peer", "samples", "seen_in"), [(TwiceAsked, 4000, "what was answered"), (Choosy, 1000, "which questions were answered")]
)
def test_a_peer_that_cheats_is_caught(peer, samples, seen_in, entropy):
    found = audit_study(TABLES, samples, 1 - ALPHA, entropy, peer)
    assert found.bound.epsilon > found.claim.epsilon
    assert found.seen_in == seen_in
