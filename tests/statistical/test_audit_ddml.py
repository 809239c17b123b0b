"""Audits of whole studies of DDML.

The bound for an honest peer is close below its label; the bound for a peer with half the noise is
above. The bound's own alpha is that of the test. Sample sizes: in each half there are enough peers
that the bound reaches the asserted share of the claim with more than five standard deviations to
spare.
"""

from __future__ import annotations

import pytest

from shoal.audit.study import audit_study
from tests.statistical.harness import statistical
from tests.unit.audit.ddml_studies import HalfNoise, make_study

ALPHA = 1e-9
UPDATE, WEIGHT = make_study(1.5), make_study(1.5, unit="weight")


@statistical(alpha=ALPHA)
@pytest.mark.parametrize(
    ("study", "share"),
    [(UPDATE, 0.3), pytest.param(WEIGHT, 0.3, marks=pytest.mark.soak)],
    ids=["update", "weight"],
)
def test_ddml_audit_bound_is_close_below_honest_label(study, share, entropy):
    found = audit_study(study, 2000, 1 - ALPHA, entropy)
    assert found.fault is None
    assert share * found.claim.epsilon < found.bound.epsilon <= found.claim.epsilon


@pytest.mark.parametrize(
    ("study", "seen_in"),
    [
        (UPDATE, "all updates"),
        pytest.param(WEIGHT, "the constant's weight in update 1", marks=pytest.mark.soak),
    ],
    ids=["update", "weight"],
)
def test_ddml_audit_catches_half_the_noise(study, seen_in, entropy):
    found = audit_study(study, 2000, 1 - ALPHA, entropy, HalfNoise)
    assert found.bound.epsilon > found.claim.epsilon
    assert found.seen_in == seen_in
