"""The registry of mechanisms to audit, and what an audit refuses."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.audit.mechanisms import GAUSSIAN_DELTA, SUBJECTS, audit, subject
from shoal.errors import MechanismError, UsageError
from shoal.privacy.events import Relation, Unit

REPORTS = ("random-response", "rappor", "pq", "subset-selection", "k-closest")


@pytest.mark.parametrize("name", SUBJECTS)
def test_every_subject_claims_what_it_was_asked_for(name):
    event = subject(name, 1.0, 16).event
    assert event.mechanism == name
    # Shares of Gaussian noise claim what their scale of 21 bits comes to.
    assert 1 - (1e-6 if name == "gaussian-shares" else 1e-9) < event.epsilon <= 1
    assert event.delta == (GAUSSIAN_DELTA if name in ("discrete-gaussian", "gaussian-shares") else 0)
    assert (event.scope.unit, event.scope.relation) == (
        (Unit.PERSON, Relation.REPLACE) if name in REPORTS else (Unit.RECORD, Relation.ADD_REMOVE)
    )


@pytest.mark.parametrize("name", SUBJECTS)
@pytest.mark.parametrize("cardinality", [2, 17])
def test_every_subject_draws_integers_for_both_inputs(name, cardinality, entropy):
    audited = subject(name, 1.0, cardinality)
    for which in (0, 1):
        keys = audited.draw(which, 200, entropy)
        assert keys.shape == (200,)
        assert keys.dtype == np.int64


@pytest.mark.parametrize("name", SUBJECTS)
def test_inputs_differ_in_the_direction_of_the_second(name, entropy):
    """At a large epsilon the two inputs are all but told apart."""
    audited = subject(name, 12.0, 4)
    first, second = (np.bincount(audited.draw(which, 500, entropy) + 50).argmax() for which in (0, 1))
    assert first != second or name == "exponential"
    assert audit(audited, 4000, 0.999, entropy).epsilon > 1


def test_choices_are_drawn_in_blocks_that_fit(entropy):
    keys = subject("exponential", 1.0, 1 << 16).draw(1, 40, entropy)
    assert keys.shape == (40,)


def test_an_unknown_name_is_refused_with_the_list():
    with pytest.raises(UsageError, match=r"(?s)USAGE-001  There is no mechanism 'laplace'.*random-response, rappor.*discrete-laplace"):
        subject("laplace", 1.0, 16)


@pytest.mark.parametrize("name", SUBJECTS)
def test_parameters_outside_the_theorems_are_refused(name):
    with pytest.raises(MechanismError, match="MECH-001"):
        subject(name, -1.0, 16)
    with pytest.raises(MechanismError, match="MECH-001"):
        subject(name, 1.0, -5)


@pytest.mark.parametrize(("samples", "confidence"), [(10, 0.999), (10**12, 0.999), (1000, 1.0), (1000, 0.2), (1000, float("nan"))])
def test_an_audit_that_could_say_nothing_is_refused(samples, confidence, entropy):
    with pytest.raises(UsageError, match="USAGE-001"):
        audit(subject("pq", 1.0, 16), samples, confidence, entropy)
