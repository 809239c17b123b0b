"""Audits of whole studies of DDML: an honest peer stays below its label and comes near it; one with half the noise goes above.

The bound's own alpha is that of the test. Sample sizes: in each half there are enough peers that the bound reaches the share of the claim
that is asserted with more than five standard deviations to spare.
"""

from __future__ import annotations

import pytest

from shoal.audit.studies import audit_study
from statistical.harness import statistical
from unit.audit.ddml_studies import HalfNoise, make_study

ALPHA = 1e-9
UPDATE, WEIGHT = make_study(1.5), make_study(1.5, unit="weight")


@statistical(alpha=ALPHA)
@pytest.mark.parametrize(("study", "share"), [(UPDATE, 0.3), pytest.param(WEIGHT, 0.3, marks=pytest.mark.soak)], ids=["update", "weight"])
def test_the_bound_is_near_an_honest_label_and_not_above_it(study, share, entropy):
    found = audit_study(study, 2000, 1 - ALPHA, entropy)
    assert found.fault is None
    assert share * found.claim.epsilon < found.bound.epsilon <= found.claim.epsilon


@pytest.mark.parametrize(
    ("study", "seen_in"),
    [(UPDATE, "what was sent"), pytest.param(WEIGHT, "the constant's weight in update 1", marks=pytest.mark.soak)],
    ids=["update", "weight"],
)
def test_a_peer_with_half_the_noise_is_caught(study, seen_in, entropy):
    found = audit_study(study, 2000, 1 - ALPHA, entropy, HalfNoise)
    assert found.bound.epsilon > found.claim.epsilon
    assert found.seen_in == seen_in
