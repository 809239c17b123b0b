"""Audits of whole studies of PFDS.

The bound for an honest holder is close below its label; the bound for a holder that cheats is
above. The bound's own alpha is that of the test. Sample sizes: in each half there are enough
holders or studies that the bound reaches the asserted share of the claim with more than five
standard deviations to spare. Data are observed in 400 studies: enough to distinguish a leak without
a price from a claim of 1.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.audit import pfds
from shoal.audit.study import audit_study, compute_claim, evaluate_observations, make_audit_plan
from shoal.privacy.accountant import compose_sequential
from tests.statistical.harness import statistical
from tests.unit.audit.pfds_studies import (
    STUDIES,
    BareLeaves,
    Eager,
    ForEveryone,
    FromItsRows,
    HalfNoise,
    HalfShares,
    HalfTables,
    ReusedDraw,
)

ALPHA = 1e-9


@pytest.fixture(autouse=True)
def _reduce_data_samples(monkeypatch):
    monkeypatch.setattr(pfds, "DATA_SAMPLES", 400)


@statistical(alpha=ALPHA)
@pytest.mark.parametrize(
    ("name", "samples", "share"),
    [
        ("paper", 40_000, 0.4),
        ("local, three", 40_000, 0.5),
        ("sums", 40_000, 0.4),
        ("gaussian", 40_000, 0.4),
    ],
)
def test_pfds_audit_bound_is_close_below_honest_label(name, samples, share, entropy):
    found = audit_study(STUDIES[name], samples, 1 - ALPHA, entropy)
    assert found.fault is None
    assert share * found.claim.epsilon < found.bound.epsilon <= found.claim.epsilon


@pytest.mark.parametrize(
    ("name", "peer", "samples", "seen_in"),
    [
        ("paper", BareLeaves, 8000, "the answer to leaves"),
        ("paper", HalfNoise, 40_000, "the answer to"),
        ("paper, numbers", Eager, 40_000, "the answer to split/"),
        ("paper, thrifty", ReusedDraw, 1000, "the difference of the counts of two levels"),
        ("paper, thrifty", FromItsRows, 1000, "the data alone"),
        ("local, three", HalfTables, 80_000, "all releases"),
        ("sums", HalfShares, 40_000, "the answer to"),
        ("gaussian", HalfShares, 40_000, "all releases, as a zero-concentrated sum"),
    ],
)
def test_pfds_audit_catches_cheating_holder(name, peer, samples, seen_in, entropy):
    found = audit_study(STUDIES[name], samples, 1 - ALPHA, entropy, peer)
    assert found.bound.epsilon > found.claim.epsilon
    assert found.seen_in.startswith(seen_in)


@pytest.mark.parametrize("name", ["sums", "gaussian"])
def test_pfds_audit_of_shares_for_all_holders_exceeds_label(name, entropy):
    """Check that the bound exceeds the label of all sums together, not only one price."""
    study = STUDIES[name]
    seen = pfds.observe_study(
        study,
        compute_claim(study),
        compose_sequential(make_audit_plan(study).charges),
        60_000,
        entropy,
        ForEveryone,
    )
    alone = replace(seen, observations=tuple(one for one in seen.observations if not one.is_part))
    assert (
        evaluate_observations(alone, 1 - ALPHA, seen.charge).bound.epsilon
        > compute_claim(study).epsilon
    )
