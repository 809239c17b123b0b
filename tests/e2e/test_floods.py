"""Honest participants finish a study while one host floods the coordinator.

The floods are those of ``python -m benchmarks run floods``, shorter and with fewer connections. No
time is checked: the machine may be busy. `docs/benchmarks/floods.md` has the times.
"""

from __future__ import annotations

import pytest

from benchmarks.speed.floods import flood
from benchmarks.speed.floods.attack import ATTACKS

MOST_MEGABYTES = 150
"""Growth of the coordinator's memory; unfinished bodies alone took a gigabyte before."""


@pytest.mark.parametrize("name", ATTACKS)
def test_participants_finish_study_under_flood(name: str) -> None:
    outcome = flood(name, 2, gap=0.1, n_before=3, n_connections=600)
    assert len(outcome.during) == 20
    assert outcome.peak_megabytes - outcome.megabytes_before < MOST_MEGABYTES
