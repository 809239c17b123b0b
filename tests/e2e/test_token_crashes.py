"""Killed participants with tokens: each counts once, with one packet."""

from __future__ import annotations

import queue
import signal
import sqlite3
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from shoal.cli.fleet import make_ledger_path
from shoal.clock import SystemClock
from shoal.entropy import SeededEntropy
from shoal.participant.ledger_file import LedgerFile
from tests.e2e.anonymous import TooSlowError, run_with_retries
from tests.e2e.children import Coordinator, Process
from tests.e2e.crashing import ask
from tests.support.servers import free_port, write_csv

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
def test_killed_participants_send_one_packet_each(entropy: SeededEntropy, way: str) -> None:
    run_with_retries(partial(run, way=way, entropy=entropy), PATIENCE)


def run(folder: Path, window: float, way: str, entropy: SeededEntropy) -> None:
    """Run a study and kill the participants in the first half of the window.

    Raise `TooSlowError` if the kills took longer.
    """
    events = queue.SimpleQueue[Process]()
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
        str(window),
    ]
    coordinator = Coordinator(
        "coordinator",
        [*serve, *(["--relay", f"http://127.0.0.1:{port}"] if way == "relay" else [])],
        folder,
        events,
    )
    started = [coordinator]
    try:
        coordinator.start()
        (study,) = ask(coordinator.url, "/v1/studies", lambda listed: len(listed) == 1)
        relay = Process(
            "relay",
            ["shoal", "relay", "--to", coordinator.url, "--port", str(port), "--spool", str(spool)],
            folder,
            events,
        )
        crew = [
            "--data",
            "rows.csv",
            "--participants",
            str(N),
            "--directory",
            "ledgers",
            "--study",
            study["digest"],
        ]
        fleet = Process("fleet", ["shoal.cli.fleet", coordinator.url, *crew], folder, events)
        for process in (relay, fleet) if way == "relay" else (fleet,):
            started.append(process)  # type: ignore[arg-type]
            process.start()
        n_kills, until = 0, time.monotonic() + window / 2
        while n_kills < N_KILLS and fleet.is_alive:
            # The fleet prints a line when it begins; the time until then depends on the machine.
            while not fleet.output:
                fleet.events.get(timeout=window)
            time.sleep(entropy.below(4000) / 1000)
            n_kills += fleet.end() == -signal.SIGKILL
            fleet.start()
        if time.monotonic() > until:
            raise TooSlowError(f"{N_KILLS} kills took longer than half of the window")
        assert fleet.wait() == 0, fleet.output
        assert n_kills == N_KILLS
        assert f"{N} of {N}: {N} finished" in fleet.output
        ended = ask(
            coordinator.url,
            f"/v1/studies/{study['digest']}",
            lambda document: document["status"] != "open",
        )
        assert ended["status"] == "done"
    finally:
        for process in started:
            process.clear()
    with closing(sqlite3.connect(store)) as db:
        counted = {
            table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("registration", "refusal")
        }
    assert counted == {"registration": N, "refusal": 0}, (
        "no second registration, and no second answer"
    )
    for i in range(N):
        path = make_ledger_path(folder / "ledgers", i)
        with LedgerFile(path, SystemClock()) as ledger:
            ledger.verify()
            assert [entry.state for entry in ledger.entries()] == ["sent"]
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT standing FROM packets").fetchall() == [
                ("seen" if way == "relay" else "sent",)
            ]
