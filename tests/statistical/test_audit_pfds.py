"""Audits of whole studies of PFDS: an honest holder stays below its label and comes near it; one that cheats goes above.

The bound's own alpha is that of the test. Sample sizes: in each half there are enough holders or studies that the bound reaches the share
of the claim that is asserted with more than five standard deviations to spare. Data are looked at in 400 studies: enough to tell from a
claim of 1 what nobody has paid for.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.audit import pfds
from shoal.audit.studies import audit_study, claim_of, judge, plan_of
from shoal.privacy.accountant import sequential
from statistical.harness import statistical
from unit.audit.pfds_studies import (
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
def _less_data(monkeypatch):
    monkeypatch.setattr(pfds, "DATA", 400)


@statistical(alpha=ALPHA)
@pytest.mark.parametrize(
    ("name", "samples", "share"),
    [("paper", 40_000, 0.4), ("local, three", 40_000, 0.5), ("sums", 40_000, 0.4), ("gaussian", 40_000, 0.4)],
)
def test_the_bound_is_near_an_honest_label_and_not_above_it(name, samples, share, entropy):
    found = audit_study(STUDIES[name], samples, 1 - ALPHA, entropy)
    assert found.fault is None
    assert share * found.claim.epsilon < found.bound.epsilon <= found.claim.epsilon


@pytest.mark.parametrize(
    ("name", "peer", "samples", "seen_in"),
    [
        ("paper", BareLeaves, 8000, "the answer to leaves"),
        ("paper", HalfNoise, 40_000, "the answer to"),
        ("paper, numbers", Eager, 40_000, "the answer to split/"),
        ("paper, thrifty", ReusedDraw, 1000, "how the counts of two levels differ"),
        ("paper, thrifty", FromItsRows, 1000, "the data alone"),
        ("local, three", HalfTables, 80_000, "all that was released"),
        ("sums", HalfShares, 40_000, "the answer to"),
        ("gaussian", HalfShares, 40_000, "all that was released, as a zero-concentrated sum"),
    ],
)
def test_a_holder_that_cheats_is_caught(name, peer, samples, seen_in, entropy):
    found = audit_study(STUDIES[name], samples, 1 - ALPHA, entropy, peer)
    assert found.bound.epsilon > found.claim.epsilon
    assert found.seen_in.startswith(seen_in)


@pytest.mark.parametrize("name", ["sums", "gaussian"])
def test_shares_made_for_all_holders_go_above_the_label_itself(name, entropy):
    """Not only above the price of a question: above what all sums together may tell."""
    study = STUDIES[name]
    seen = pfds.look(study, claim_of(study), sequential(plan_of(study).charges), 60_000, entropy, ForEveryone)
    alone = replace(seen, looks=tuple(one for one in seen.looks if not one.is_part))
    assert judge(alone, 1 - ALPHA, seen.charged).bound.epsilon > claim_of(study).epsilon
