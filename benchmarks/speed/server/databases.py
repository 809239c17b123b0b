"""SDQ over HTTP: ten databases with ledger and journal answer rounds of 10,000 counts.

All ten run in one process next to the coordinator, by the code of ``shoal join``; the seconds of a
round are theirs and the coordinator's. Enrolment and the one small round of the model are included
and spread over the rounds.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.measure import Measure
from benchmarks.speed.server.runs import coordinator
from shoal.cli.fleet import FleetSettings, make_fleet_roster, run_fleet
from shoal.clock import SystemClock
from shoal.data.tables import Table
from shoal.entropy import SystemEntropy
from shoal.errors import ShoalError

N_DATABASES, N_ROUNDS = 10, 5
WARDS, DAYS = 50, 100
"""Values of two features, and two of the label: 10,000 cells."""

_TEXT = f"""
title = "Who comes back?"
purpose = "To measure."
contact = "a@example.org"
protocol = "sdq"
trust = "secure-sum"
[label]
name = "back"
values = ["no", "yes"]
[[feature]]
name = "ward"
values = {[f"w{i}" for i in range(WARDS)]}
missing = false
[[feature]]
name = "day"
values = {[f"d{i}" for i in range(DAYS)]}
missing = false
[privacy]
epsilon = 1.0
[participation]
minimum = 10
size = 20000
[sdq]
n_databases = {N_DATABASES}
learner = "naive-bayes"
noise = "all-contribute"
max_colluders = 3
[queries]
features = ["ward", "day", "back"]
n_queries = {N_ROUNDS}
epsilon_release = 0.1
""".replace("'", '"')
_QUERY = '[[query]]\nkind = "histogram"\nfeatures = ["ward", "day", "back"]\n'


def measures(bench: str) -> Iterator[Measure]:
    """Yield seconds of a round, and its cost for the coordinator."""
    clock, entropy = SystemClock(), SystemEntropy()
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        home = Path(folder)
        members = make_fleet_roster(home, N_DATABASES, clock, entropy)
        roster, queries = home / "roster.toml", home / "queries.toml"
        roster.write_text(
            "".join(
                f'[[member]]\nname = "{member.name}"\nkey = "{member.key.hex()}"\n'
                for member in members
            )
        )
        queries.write_text(N_ROUNDS * _QUERY)
        with coordinator(_TEXT, "--roster", str(roster), "--queries", str(queries)) as served:
            start, cpu = time.perf_counter(), served.cpu_seconds()
            ended = asyncio.run(
                run_fleet(
                    FleetSettings(served.url, home, clock, entropy), _rows(entropy), N_DATABASES
                )
            )
            seconds, used = time.perf_counter() - start, served.cpu_seconds() - cpu
        for one in ended.values():
            if isinstance(one, ShoalError):
                raise one
    yield Measure(bench, "sdq_round_10_members_10k", seconds / N_ROUNDS, "s", "lower")
    yield Measure(
        bench, "sdq_round_10_members_10k_coordinator", 1e3 * used / N_ROUNDS, "ms", "lower"
    )


def _rows(entropy: SystemEntropy, n: int = 2_000) -> Table:
    ward, day, back = (entropy.below_many(bound, n) for bound in (WARDS, DAYS, 2))
    return {
        "ward": np.array([f"w{i}" for i in ward], object),
        "day": np.array([f"d{i}" for i in day], object),
        "back": np.array(["no", "yes"], object)[back],
    }
