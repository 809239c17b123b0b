"""People with tokens whose process is killed again and again, from registration to the last look: each counts once, with one packet."""

from __future__ import annotations

import queue
import signal
import sqlite3
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from e2e.anonymous import TooSlowError, in_time
from e2e.children import Coordinator, Process
from e2e.crashing import ask
from live import write_csv
from servers import free_port
from shoal.clock import SystemClock
from shoal.entropy import SeededEntropy
from shoal.participant.fleet import file_of
from shoal.participant.ledger_file import LedgerFile

N, N_KILLS, PATIENCE = 8, 4, 60.0
STUDY = """
title = "Wind"
purpose = "When do we play?"
contact = "a@example.org"
protocol = "anonml"
label = {name = "play", values = ["no", "yes"]}
privacy = {epsilon = 2.0}
participation = {minimum = 3, size = 20}

[[feature]]
name = "wind"
values = ["weak", "strong"]
missing = false

[[feature]]
name = "heat"
range = [0, 40]
bins = [20]
missing = false
"""


@pytest.mark.soak
@pytest.mark.parametrize("way", ["direct", "relay"])
def test_whoever_is_killed_sends_one_packet(entropy: SeededEntropy, way: str) -> None:
    in_time(partial(run, way=way, entropy=entropy), PATIENCE)


def run(folder: Path, patience: float, way: str, entropy: SeededEntropy) -> None:
    """Have people take part who are killed in the first part of the window; `TooSlowError` where that takes longer."""
    heard = queue.SimpleQueue[Process]()
    (folder / "study.toml").write_text(STUDY)
    write_csv(folder / "rows.csv", N, "rows")
    store, spool, port = folder / "coordinator.db", folder / "relay.db", free_port()
    serve = [
        "shoal",
        "serve",
        "study.toml",
        "--store",
        f"sqlite:{store}",
        "--json",
        "--port",
        str(free_port()),
        "--patience",
        str(patience),
    ]
    coordinator = Coordinator("coordinator", [*serve, *(["--relay", f"http://127.0.0.1:{port}"] if way == "relay" else [])], folder, heard)
    started = [coordinator]
    try:
        coordinator.start()
        (study,) = ask(coordinator.url, "/v1/studies", lambda listed: len(listed) == 1)
        relay = Process("relay", ["shoal", "relay", "--to", coordinator.url, "--port", str(port), "--spool", str(spool)], folder, heard)
        crew = ["--data", "rows.csv", "--participants", str(N), "--directory", "ledgers", "--study", study["digest"]]
        fleet = Process("fleet", ["shoal.participant.fleet", coordinator.url, *crew], folder, heard)
        for process in (relay, fleet) if way == "relay" else (fleet,):
            started.append(process)  # type: ignore[arg-type]
            process.start()
        n_kills, until = 0, time.monotonic() + patience / 2
        while n_kills < N_KILLS and fleet.is_alive:
            # It says a line as it begins; what it takes till then depends on the machine.
            while not fleet.said:
                fleet.heard.get(timeout=patience)
            time.sleep(entropy.below(4000) / 1000)
            n_kills += fleet.end() == -signal.SIGKILL
            fleet.start()
        if time.monotonic() > until:
            raise TooSlowError(f"{N_KILLS} deaths took longer than half of the window")
        assert fleet.wait() == 0, fleet.said
        assert n_kills == N_KILLS
        assert f"{N} of {N}: {N} finished" in fleet.said
        ended = ask(coordinator.url, f"/v1/studies/{study['digest']}", lambda told: told["status"] != "open")
        assert ended["status"] == "done"
    finally:
        for process in started:
            process.clear()
    with closing(sqlite3.connect(store)) as db:
        counted = {table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("registration", "refusal")}
    assert counted == {"registration": N, "refusal": 0}, "no second registration, and no second answer"
    for i in range(N):
        path = file_of(folder / "ledgers", i)
        with LedgerFile(path, SystemClock()) as ledger:
            ledger.verify()
            assert [entry.state for entry in ledger.entries()] == ["sent"]
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT standing FROM packets").fetchall() == [("seen" if way == "relay" else "sent",)]
