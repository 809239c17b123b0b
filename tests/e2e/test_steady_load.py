"""Steady load on a coordinator with two workers: each update counts once, and memory stays flat.

Each update has a different id and is sent once. If the coordinator's file has the acknowledged
number of ids of each epoch, and has merged the acknowledged number of updates, then each one counts
once. Ids of old epochs are deleted; they were compared before that.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

import pytest

from benchmarks.speed.server import pairs
from benchmarks.speed.server.load import Talk, Tally, load
from benchmarks.speed.server.runs import Coordinator, coordinator, ddml_text, honest_weights

N_WEIGHTS = 387
TEXT = ddml_text(N_WEIGHTS, "open")
PART_SECONDS = 30.0
N_WARM, N_PARTS = 4, 20
"""Parts in which caches fill, and all of them: ten minutes."""
MAX_GROWTH = 0.05


def count_acknowledged(
    talk: Callable[[Tally], Talk], acknowledged: Counter[int]
) -> Callable[[Tally], Talk]:
    """Wrap a talk so that acknowledged updates are counted by their epoch."""

    def talk_and_count(tally: Tally) -> Talk:
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

    return talk_and_count


def check_account(served: Coordinator, acknowledged: Mapping[int, int]) -> None:
    """Compare acknowledged updates with the coordinator's file."""
    with closing(sqlite3.connect(f"file:{served.home}/coordinator.db?mode=ro", uri=True)) as db:
        db.execute("BEGIN")
        n_merged, kept_from = db.execute("SELECT n_merged, kept_from FROM ddml").fetchone()
        named = dict(db.execute("SELECT epoch, count(*) FROM ddml_update GROUP BY epoch"))
    assert n_merged == sum(acknowledged.values()) > 0
    assert named == {epoch: n for epoch, n in acknowledged.items() if epoch >= kept_from}


def growth(megabytes: Sequence[float], n_warm: int) -> float:
    """Return the largest relative growth of memory after the first parts."""
    return max(megabytes[n_warm:]) / megabytes[n_warm - 1] - 1


def run_load(n_parts: int, seconds: float) -> list[float]:
    """Return megabytes after each part of the load; check that the file has all updates."""
    bodies, acknowledged, megabytes = honest_weights(TEXT), Counter[int](), []
    with coordinator(TEXT, workers=2) as served:
        for _ in range(n_parts):
            load(
                served.port,
                count_acknowledged(pairs(served.study, bodies), acknowledged),
                seconds,
                8 + 4 * N_WEIGHTS,
            )
            check_account(served, acknowledged)
            megabytes.append(served.own_megabytes())
    print(
        f"acknowledged, by epoch: {dict(acknowledged)}; megabytes: "
        f"{[round(one, 1) for one in megabytes]}"
    )
    return megabytes


def test_each_acknowledged_update_is_merged_once() -> None:
    run_load(5, 3.0)


@pytest.mark.soak
def test_memory_does_not_grow_in_ten_minutes() -> None:
    assert growth(run_load(N_PARTS, PART_SECONDS), N_WARM) <= MAX_GROWTH


def test_growth_measures_largest_increase() -> None:
    assert growth([50, 100, 101, 99], 2) == pytest.approx(0.01)
    assert growth([50, 100, 100, 106, 100], 2) > MAX_GROWTH
