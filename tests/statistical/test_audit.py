"""Audits of mechanisms: the bound is close below an honest claim, and above a false one.

The bound's own alpha is that of the test. Sample sizes: with n trials in the half that counts, the
bound falls short of epsilon 1 by about the sum over both chances c of sqrt(2 ln(2 / alpha) / (n
c)), and varies by sqrt(sum of 1 / (n c)): with these sizes a shortfall of 0.1 is more than six
standard deviations away.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.audit.mechanisms import (
    TARGETS,
    AuditTarget,
    audit_mechanism,
    make_report_target,
    make_target,
)
from shoal.entropy import Entropy
from shoal.mechanisms.frequency_oracle import WORD
from shoal.mechanisms.unary_encoding import PQPerturbation, UnaryEncoding
from shoal.privacy.events import LOCAL_PERSON
from tests.statistical.harness import statistical

ALPHA = 1e-9
SAMPLES = {
    "random-response": 1_500_000,
    "rappor": 500_000,
    "pq": 500_000,
    "subset-selection": 500_000,
    "discrete-laplace": 500_000,
}
LOOSE = ("discrete-gaussian", "gaussian-shares")


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("name", SAMPLES)
def test_audit_bound_is_within_a_tenth_below_honest_claim(name, entropy):
    audited = make_target(name, 1.0, 16)
    bound = audit_mechanism(audited, SAMPLES[name], 1 - ALPHA, entropy)
    assert 0.9 * audited.event.epsilon < bound.epsilon <= audited.event.epsilon


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("name", sorted(set(TARGETS) - set(SAMPLES)))
def test_audit_bound_is_below_other_honest_claims(name, entropy):
    audited = make_target(name, 1.0, 16)
    assert (
        0.1 < audit_mechanism(audited, 200_000, 1 - ALPHA, entropy).epsilon <= audited.event.epsilon
    )


@pytest.mark.parametrize("name", [name for name in TARGETS if name not in LOOSE])
def test_audit_catches_half_the_noise(name, entropy):
    """Claim epsilon 1 for noise that is made for 2."""
    weak = replace(make_target(name, 2.0, 16), event=make_target(name, 1.0, 16).event)
    assert audit_mechanism(weak, 50_000, 1 - ALPHA, entropy).epsilon > weak.event.epsilon


@pytest.mark.parametrize("name", LOOSE)
def test_audit_catches_a_tenth_of_the_noise_if_claim_is_loose(name, entropy):
    """Claim epsilon 1 for noise that is made for 10.

    (epsilon, delta) claims are not tight on any one set: half the noise stays within the claim that
    a sampler can refute.
    """
    weak = replace(make_target(name, 10.0, 16), event=make_target(name, 1.0, 16).event)
    assert audit_mechanism(weak, 50_000, 1 - ALPHA, entropy).epsilon > weak.event.epsilon


def test_audit_catches_true_bit_without_noise(entropy):
    honest = PQPerturbation(1.0, 16)
    bare = UnaryEncoding(1.0, 16, LOCAL_PERSON, keep=WORD - 1, flip=int(honest.q * WORD))
    bare.name = "pq"  # type: ignore[misc]
    weak = replace(make_report_target(bare), event=honest.event())
    assert audit_mechanism(weak, 50_000, 1 - ALPHA, entropy).epsilon > weak.event.epsilon


def test_audit_catches_leak_in_one_percent_of_reports(entropy):
    """Send the true value now and then.

    No ratio of common outputs shows it; a separate output does.
    """
    honest = make_target("random-response", 1.0, 16)

    def draw(which: int, n: int, entropy: Entropy) -> np.ndarray:
        keys = honest.draw(which, n, entropy)
        keys[entropy.below_many(100, n) == 0] = 100 + which
        return keys

    weak = AuditTarget(honest.event, draw)
    assert audit_mechanism(weak, 50_000, 1 - ALPHA, entropy).epsilon > weak.event.epsilon
