"""The real study of ``shoal hello``: a coordinator and its participants on loopback.

The demonstration calls `run_live_study`, which also reads what each side stores afterwards. The
coordinator is ``shoal serve`` with anonymous tokens, one participant is ``shoal join``, the others
are a fleet: three processes, sixty ledgers. Noise, tokens and keys are real; the people are
synthetic.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from shoal.cli.hello.population import (
    LABEL,
    TITLE,
    format_csv,
    make_people,
    make_people_table,
    make_study_text,
)
from shoal.cli.hello.processes import DemoProcess, manage_processes, wait_for_all
from shoal.clock import SystemClock
from shoal.data.tables import Table
from shoal.entropy import SeededEntropy
from shoal.files import write_directory
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.rounding import format_epsilon, format_epsilon_down, from_grains

PEOPLE, MINIMUM = 60, 30
WINDOWS = (20.0, 60.0, 180.0)
"""Seconds in which all must answer; the next is tried if this machine is too busy for one.

All must register in the first half.
"""
_TIMEOUT_SECONDS = 5.0
_STORE_TABLES = {"keys": "enrolment", "names": "submission", "answers": "held"}
"""Contents of a coordinator's store -> table.

It has digests of the keys that enrolled, names of the packets that arrived, and answers that are
not aggregated yet.
"""

_SCORE_NAMES = {"without privacy, from the crowd": "the people of step 2 without privacy"}
"""Key of a score -> its name in the output, if it differs."""

ProgressCallback = Callable[[str], None]


def run_live_study(home: Path, epsilon: float, on_progress: ProgressCallback) -> dict[str, Any]:
    """Run the study with the shortest window that this machine can keep, and return the outcome.

    Parameters
    ----------
    home
        An empty directory.
    epsilon
        The price of one answer: unit person, relation replace, against everyone.

    Returns
    -------
    dict
        ``status`` and figures; if it is ``done`` also the ``result``, as the coordinator has
        published it, otherwise the ``reason``.
    """
    outcome: dict[str, Any] = {}
    for attempt, window in enumerate(WINDOWS):
        outcome = run_attempt(home / str(attempt), epsilon, window, on_progress)
        if outcome["status"] == "done":
            break
        on_progress(f"this machine is too busy for a window of {window:g} s")
    return outcome


def run_attempt(
    directory: Path, epsilon: float, window: float, on_progress: ProgressCallback
) -> dict[str, Any]:
    """Run the study with a window of that number of seconds, in a new directory."""
    synthetic = make_people(PEOPLE, SeededEntropy(f"shoal hello, {PEOPLE} people"))
    people = make_people_table(synthetic.columns, synthetic.labels)
    text = make_study_text(
        epsilon, minimum=MINIMUM, size=PEOPLE, title=f"{TITLE} {PEOPLE} answer for real"
    )
    write_directory(
        directory,
        {
            "study.toml": text,
            "me.csv": format_csv(people, slice(1)),
            "others.csv": format_csv(people, slice(1, None)),
        },
    )
    with manage_processes(directory) as start:
        on_progress("the coordinator starts")
        options = (
            "--port",
            "0",
            "--store",
            "sqlite:coordinator.db",
            "--patience",
            f"{window:g}",
            "--json",
        )
        coordinator = start("coordinator", "shoal", "serve", "study.toml", *options)
        notice = json.loads(coordinator.wait_for_first_line())
        url, study = notice["address"], notice["studies"][0]
        consent = (
            "--yes",
            "--max-epsilon",
            repr(epsilon),
            "--ledger",
            "me.db",
            "--new-ledger",
            "--out",
            "mine",
            "--json",
        )
        me = start("participant", "shoal", "join", url, "--data", "me.csv", *consent)
        fleet = ("--data", "others.csv", "--participants", str(PEOPLE - 1), "--directory", "people")
        others = start("fleet", "shoal.cli.fleet", url, *fleet)
        wait_for_all(
            [me, others],
            lambda: on_progress(_describe_progress(coordinator, url, study["digest"], window)),
        )
        progress = _fetch_progress(url, study["digest"])
    outcome = {name: progress[name] for name in ("status", "reason", "enrolled", "accepted")}
    outcome |= {
        "address": url,
        "digest": study["digest"],
        "short": study["short"],
        "window_seconds": window,
        "people": PEOPLE,
    }
    if progress["status"] == "failed" or progress["accepted"] < PEOPLE:
        # The coordinator rejects late packets, as it should.
        return outcome | {
            "status": "failed",
            "reason": progress["reason"] or f"{progress['accepted']} of {PEOPLE} answered in time.",
        }
    for child in (me, others):
        if child.exit_code != 0:
            raise child.make_error()
    return outcome | {
        "packet_bytes": study["label"]["bytes"],
        "sent": json.loads(me.output)["sent"],
        "ledger": _read_ledger(directory / "me.db"),
        "store": _inspect_store(directory, study["digest"]),
        "result": json.loads((directory / "mine" / "model.json").read_text("utf-8")),
    }


def _describe_progress(coordinator: DemoProcess, url: str, study: str, window: float) -> str:
    """Return the progress of the study as text.

    The coordinator counts people in tens while the study is open.
    """
    if coordinator.has_ended:
        raise coordinator.make_error()
    with suppress(httpx2.HTTPError):
        progress = _fetch_progress(url, study)
        return (
            f"{progress['enrolled']} enrolled, {progress['accepted']} answered, each at a "
            f"random time in {window:g} s"
        )
    return "the coordinator is busy"


def _fetch_progress(url: str, study: str) -> dict[str, Any]:
    response = httpx2.get(f"{url}/v1/studies/{study}/progress", timeout=_TIMEOUT_SECONDS)
    progress: dict[str, Any] = response.raise_for_status().json()
    return progress


def _read_ledger(path: Path) -> dict[str, Any]:
    """Return the entry, totals and limit of one participant's ledger."""
    with LedgerFile(path, SystemClock()) as ledger:
        head = str(ledger.verify())
        [total], [entry], [limit] = ledger.totals(), ledger.entries(), ledger.limits()
        return {
            "state": entry.state.value,
            "spent": format_epsilon(from_grains(total.spent)),
            "unit": entry.event.scope.unit.value,
            "relation": entry.event.scope.relation.value,
            "limit": format_epsilon_down(from_grains(limit.limit.grains or 0)),
            "period": limit.limit.period.value,
            "head": head,
        }


def _inspect_store(directory: Path, study: str) -> dict[str, int]:
    """Return the row counts of the coordinator's file, and the number of sent answers in it."""
    file = directory / "coordinator.db"
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
        counts = {
            name: int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
            for name, table in _STORE_TABLES.items()
        }
    content = b"".join(path.read_bytes() for path in directory.glob("coordinator.db*"))
    sent = [
        answer
        for path in (directory / "me.db", *sorted((directory / "people").glob("*.db")))
        for answer in _read_answers(path, study)
    ]
    return {**counts, "searched": len(sent), "found": sum(answer in content for answer in sent)}


def _read_answers(path: Path, study: str) -> list[bytes]:
    with LedgerFile(path, SystemClock()) as ledger:
        return [
            ledger.read_payload(study, entry.release.question)
            for entry in ledger.entries()
            if entry.study == study
        ]


def compute_accuracy(result: dict[str, Any], table: Table) -> float:
    """Return the accuracy of the published model on a table."""
    from shoal.models import read_model

    return float(np.mean(read_model(result).predict(table) == table[LABEL]))


def describe_live_study(served: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the lines about the study."""
    started = (
        "coordinator",
        f"`shoal serve` at {served['address']}, and {served['people']} participants in two other "
        "processes",
    )
    if served["status"] != "done":
        return [
            started,
            (
                "left out",
                f"This machine is too busy: in {served['window_seconds']:g} s {served['reason']}",
            ),
        ]
    ledger, store = served["ledger"], served["store"]
    scope = f"{ledger['unit']}, {ledger['relation']}, against everyone"
    accuracies = ", ".join(
        f"{_SCORE_NAMES.get(name, name)} {100 * value:.1f} %"
        for name, value in served["scores"].items()
    )
    contents = (
        f"{store['keys']} digests of keys, {store['names']} names of packets, "
        f"{store['answers']} answers"
    )
    spent = f"spent {ledger['spent']} of {ledger['limit']} a {ledger['period']}"
    return [
        started,
        (
            "consent",
            f"to study {served['short']}: epsilon {ledger['spent']} each ({scope}); one packet "
            f"of {served['packet_bytes']} bytes",
        ),
        (
            "answers",
            f"{served['enrolled']} enrolled, {served['accepted']} packets with a one-time token, "
            "each sent at a random time",
        ),
        (
            "model",
            f"right answers: {accuracies}; {served['people']} people are too few to learn much: "
            "step 2 has more",
        ),
        (
            "stored",
            f"by the coordinator: {contents}; {store['found']} of {store['searched']} sent "
            "answers are in its files",
        ),
        (
            "one ledger",
            f"{ledger['state']}, {served['sent']['bytes']} bytes; {spent} ({scope}); head "
            f"{ledger['head'][:21]}...",
        ),
    ]
