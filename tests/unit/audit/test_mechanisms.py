"""Audit targets of mechanisms, and audits that are rejected."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.audit.mechanisms import GAUSSIAN_DELTA, TARGETS, audit_mechanism, make_target
from shoal.errors import MechanismError, UsageError
from shoal.privacy.events import Relation, Unit

REPORTS = ("random-response", "rappor", "pq", "subset-selection", "k-closest")


@pytest.mark.parametrize("name", TARGETS)
def test_target_claims_the_given_epsilon(name):
    event = make_target(name, 1.0, 16).event
    assert event.mechanism == name
    # Shares of Gaussian noise claim what their scale of 21 bits comes to.
    assert 1 - (1e-6 if name == "gaussian-shares" else 1e-9) < event.epsilon <= 1
    assert event.delta == (
        GAUSSIAN_DELTA if name in ("discrete-gaussian", "gaussian-shares") else 0
    )
    assert (event.scope.unit, event.scope.relation) == (
        (Unit.PERSON, Relation.REPLACE) if name in REPORTS else (Unit.RECORD, Relation.ADD_REMOVE)
    )


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("cardinality", [2, 17])
def test_target_draws_integers_for_both_inputs(name, cardinality, entropy):
    audited = make_target(name, 1.0, cardinality)
    for which in (0, 1):
        keys = audited.draw(which, 200, entropy)
        assert keys.shape == (200,)
        assert keys.dtype == np.int64


@pytest.mark.parametrize("name", TARGETS)
def test_second_input_raises_the_output(name, entropy):
    """At a large epsilon the two inputs are almost always distinguished."""
    audited = make_target(name, 12.0, 4)
    first, second = (
        np.bincount(audited.draw(which, 500, entropy) + 50).argmax() for which in (0, 1)
    )
    assert first != second or name == "exponential"
    assert audit_mechanism(audited, 4000, 0.999, entropy).epsilon > 1


def test_choices_are_drawn_in_blocks(entropy):
    keys = make_target("exponential", 1.0, 1 << 16).draw(1, 40, entropy)
    assert keys.shape == (40,)


def test_make_target_rejects_an_unknown_name_with_the_list():
    with pytest.raises(
        UsageError,
        match=r"(?s)USAGE-001  There is no mechanism 'laplace'.*random-response, rappor.*"
        r"discrete-laplace",
    ):
        make_target("laplace", 1.0, 16)


@pytest.mark.parametrize("name", TARGETS)
def test_make_target_rejects_parameters_outside_the_theorems(name):
    with pytest.raises(MechanismError, match="MECH-001"):
        make_target(name, -1.0, 16)
    with pytest.raises(MechanismError, match="MECH-001"):
        make_target(name, 1.0, -5)


@pytest.mark.parametrize(
    ("samples", "confidence"),
    [(10, 0.999), (10**12, 0.999), (1000, 1.0), (1000, 0.2), (1000, float("nan"))],
)
def test_audit_mechanism_rejects_too_few_samples_or_confidence(samples, confidence, entropy):
    with pytest.raises(UsageError, match="USAGE-001"):
        audit_mechanism(make_target("pq", 1.0, 16), samples, confidence, entropy)
