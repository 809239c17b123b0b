"""Steady load on a coordinator with two workers: no acknowledged update is lost or counted twice, and its memory does not grow.

No two updates have the same id, and each is sent once. So if the coordinator's file has as many ids of an epoch as were acknowledged, and
has merged as many updates in all, then each is in, once. Ids of old epochs are forgotten; each epoch's were compared before that.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

import pytest

from benchmarks.speed.server import pairs
from benchmarks.speed.server_load import Talk, Tally, load
from benchmarks.speed.server_runs import Coordinator, coordinator, ddml_text, honest_weights

N_WEIGHTS = 387
TEXT = ddml_text(N_WEIGHTS, "open")
PART_SECONDS = 30.0
N_WARM, N_PARTS = 4, 20
"""Parts in which caches fill, and all of them: ten minutes."""
MOST_GROWTH = 0.05


def counted(talk: Callable[[Tally], Talk], acknowledged: Counter[int]) -> Callable[[Tally], Talk]:
    """A talk whose acknowledged updates are counted by the epoch that they carry."""

    def counting(tally: Tally) -> Talk:
        inner = talk(tally)
        try:
            request = next(inner)
            while True:
                answer = yield request
                if answer[0] == 202:
                    acknowledged[int.from_bytes(request[1][16:24], "little")] += 1
                request = inner.send(answer)
        except StopIteration:
            return

    return counting


def check_account(served: Coordinator, acknowledged: Mapping[int, int]) -> None:
    """Hold what was acknowledged against the coordinator's file."""
    with closing(sqlite3.connect(f"file:{served.home}/coordinator.db?mode=ro", uri=True)) as db:
        db.execute("BEGIN")
        n_merged, kept_from = db.execute("SELECT n_merged, kept_from FROM ddml").fetchone()
        named = dict(db.execute("SELECT epoch, count(*) FROM ddml_update GROUP BY epoch"))
    assert n_merged == sum(acknowledged.values()) > 0
    assert named == {epoch: n for epoch, n in acknowledged.items() if epoch >= kept_from}


def growth(megabytes: Sequence[float], n_warm: int) -> float:
    """The largest part by which memory was larger than at the end of the first parts."""
    return max(megabytes[n_warm:]) / megabytes[n_warm - 1] - 1


def loaded(n_parts: int, seconds: float) -> list[float]:
    """Megabytes after each part of the load; all that was acknowledged is in the file after each."""
    bodies, acknowledged, megabytes = honest_weights(TEXT), Counter[int](), []
    with coordinator(TEXT, workers=2) as served:
        for _ in range(n_parts):
            load(served.port, counted(pairs(served.study, bodies), acknowledged), seconds, 8 + 4 * N_WEIGHTS)
            check_account(served, acknowledged)
            megabytes.append(served.own_megabytes())
    print(f"acknowledged, by epoch: {dict(acknowledged)}; megabytes: {[round(one, 1) for one in megabytes]}")
    return megabytes


def test_every_acknowledged_update_is_merged_once() -> None:
    loaded(5, 3.0)


@pytest.mark.soak
def test_memory_is_flat_for_ten_minutes() -> None:
    assert growth(loaded(N_PARTS, PART_SECONDS), N_WARM) <= MOST_GROWTH


def test_growth_is_seen() -> None:
    assert growth([50, 100, 101, 99], 2) == pytest.approx(0.01)
    assert growth([50, 100, 100, 106, 100], 2) > MOST_GROWTH
