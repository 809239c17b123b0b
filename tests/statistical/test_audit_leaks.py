"""Leaks outside the parts of an output that an honest peer puts its rows into.

An audit finds each of them, and where it is. The audit of an honest study consists of many bounds;
its confidence is that of all of them, so the alpha of a test is that of the whole report. Without
noise or price, a few hundred peers are enough to refute a claim of 1.
"""

from __future__ import annotations

import pytest

from shoal.audit import bound, pfds
from shoal.audit.study import audit_study
from tests.statistical.harness import statistical
from tests.unit.audit import ddml_studies, pfds_studies, sdq_studies, small_studies
from tests.unit.audit.leaky_peers import (
    EarlyAlarm,
    LabelInId,
    LabelInOtherCell,
    LabelInParity,
    NoiseInId,
    SharedNoise,
)

ALPHA = 1e-9
TOWN = {"name": "town", "values": list("abcdefghijkl"), "missing": False}
DDML, DDML_PAPER = ddml_studies.make_study(1.0), ddml_studies.make_study(1.0, variant="paper")
ANONML = small_studies.paper_study(1.0, [TOWN, small_studies.BINNED[2]])
PFDS = pfds_studies.make_study(1.0, [pfds_studies.WARD, pfds_studies.TOWN])
STUDIES = [
    pytest.param(study, id=f"{module.__name__.rpartition('.')[2]}: {name}")
    for module in (small_studies, ddml_studies, sdq_studies, pfds_studies)
    for name, study in module.STUDIES.items()
]


@pytest.fixture(autouse=True)
def _reduce_samples(monkeypatch):
    monkeypatch.setattr(bound, "MIN_SAMPLES", 100)
    monkeypatch.setattr(pfds, "DATA_SAMPLES", 400)


@pytest.mark.parametrize(
    ("study", "peer", "seen_in"),
    [
        (DDML, LabelInId, "a classifier of all bytes"),
        (DDML, LabelInParity, "the parity of searched number 3"),
        (DDML_PAPER, LabelInParity, "the parity of searched number 3"),
        (ANONML, LabelInOtherCell, "searched number"),
        (PFDS, SharedNoise, "the difference of searched numbers"),
    ],
    ids=["id", "parity", "parity, paper", "other cells", "shared noise"],
)
def test_audit_finds_leak_in_everything_that_leaves(study, peer, seen_in, entropy):
    found = audit_study(study, 200, 0.999, entropy, peer)
    assert found.bound.epsilon > found.claim.epsilon
    assert found.seen_in.startswith(seen_in)
    assert found.charge == found.price


@pytest.mark.parametrize(
    ("study", "peer", "leak"),
    [
        (DDML, LabelInId, "the field id of ddml.update"),
        (DDML, NoiseInId, "the field id of ddml.update"),
        (sdq_studies.STUDIES["bayes"], EarlyAlarm, "the time of an alarm"),
        (pfds_studies.STUDIES["paper, thrifty"], pfds_studies.FromItsRows, "the field "),
    ],
    ids=["id", "random bits of a report", "alarm", "data of rows"],
)
def test_replay_finds_leak_outside_the_reports(study, peer, leak, entropy):
    found = audit_study(study, 100, 0.999, entropy, peer)
    assert found.fault is not None
    assert found.replay.leak.startswith(leak)
    assert found.replay.n == 1


@pytest.mark.parametrize("study", [DDML, DDML_PAPER, ANONML, PFDS])
@statistical(alpha=ALPHA)
def test_audit_of_honest_peer_finds_nothing(study, entropy):
    found = audit_study(study, 200, 1 - ALPHA, entropy)
    assert found.fault is None and found.replay.leak is None
    assert found.bound.epsilon <= found.claim.epsilon


@pytest.mark.soak
@pytest.mark.parametrize("study", STUDIES)
@statistical(alpha=ALPHA)
def test_audit_of_every_variant_finds_nothing(study, entropy):
    found = audit_study(study, 1000, 1 - ALPHA, entropy)
    assert found.fault is None and found.replay.leak is None
    assert found.bound.epsilon <= found.claim.epsilon
