"""Audits of what is honest stay below the claim and come near it; audits of what is not go above.

The bound's own alpha is that of the test. Sample sizes: with n trials in the half that counts, the bound falls short of epsilon 1 by
about the sum over both chances c of sqrt(2 ln(2 / alpha) / (n c)), and varies by sqrt(sum of 1 / (n c)): with these sizes a shortfall of
0.1 is more than six standard deviations away.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shoal.audit.mechanisms import SUBJECTS, Subject, audit, of_reports, subject
from shoal.entropy import Entropy
from shoal.mechanisms.bits import BitPerturbation, PQPerturbation
from shoal.mechanisms.reports import WORD
from shoal.privacy.events import LOCAL_PERSON
from statistical.harness import statistical

ALPHA = 1e-9
SAMPLES = {"random-response": 1_500_000, "rappor": 500_000, "pq": 500_000, "subset-selection": 500_000, "discrete-laplace": 500_000}
LOOSE = ("discrete-gaussian", "gaussian-shares")


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("name", SAMPLES)
def test_the_bound_is_within_a_tenth_of_an_honest_claim_and_not_above_it(name, entropy):
    audited = subject(name, 1.0, 16)
    bound = audit(audited, SAMPLES[name], 1 - ALPHA, entropy)
    assert 0.9 * audited.event.epsilon < bound.epsilon <= audited.event.epsilon


@statistical(alpha=ALPHA)
@pytest.mark.parametrize("name", sorted(set(SUBJECTS) - set(SAMPLES)))
def test_the_bound_is_not_above_other_honest_claims(name, entropy):
    audited = subject(name, 1.0, 16)
    assert 0.1 < audit(audited, 200_000, 1 - ALPHA, entropy).epsilon <= audited.event.epsilon


@pytest.mark.parametrize("name", [name for name in SUBJECTS if name not in LOOSE])
def test_half_the_noise_is_caught(name, entropy):
    """It claims epsilon 1 and is made for 2."""
    weak = replace(subject(name, 2.0, 16), event=subject(name, 1.0, 16).event)
    assert audit(weak, 50_000, 1 - ALPHA, entropy).epsilon > weak.event.epsilon


@pytest.mark.parametrize("name", LOOSE)
def test_a_tenth_of_the_noise_is_caught_even_where_the_claim_is_loose(name, entropy):
    """(epsilon, delta) claims are not tight on any one set: half the noise stays within the claim that a sampler can refute."""
    weak = replace(subject(name, 10.0, 16), event=subject(name, 1.0, 16).event)
    assert audit(weak, 50_000, 1 - ALPHA, entropy).epsilon > weak.event.epsilon


def test_a_true_bit_sent_as_it_is_is_caught(entropy):
    honest = PQPerturbation(1.0, 16)
    bare = BitPerturbation(1.0, 16, LOCAL_PERSON, keep=WORD - 1, flip=int(honest.q * WORD))
    bare.name = "pq"  # type: ignore[misc]
    weak = replace(of_reports(bare), event=honest.event())
    assert audit(weak, 50_000, 1 - ALPHA, entropy).epsilon > weak.event.epsilon


def test_a_leak_that_shows_once_in_a_hundred_is_caught(entropy):
    """The value itself is sent now and then: no ratio of common outputs shows it, an output of its own does."""
    honest = subject("random-response", 1.0, 16)

    def draw(which: int, n: int, entropy: Entropy) -> np.ndarray:
        keys = honest.draw(which, n, entropy)
        keys[entropy.below_many(100, n) == 0] = 100 + which
        return keys

    weak = Subject(honest.event, draw)
    assert audit(weak, 50_000, 1 - ALPHA, entropy).epsilon > weak.event.epsilon
