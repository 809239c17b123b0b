"""The real study of ``shoal hello``: a coordinator and its participants on loopback, and what each side holds afterwards.

The coordinator is ``shoal serve`` with anonymous tokens, one participant is ``shoal join``, the others are a fleet: three processes, sixty
ledgers. Noise, tokens and keys are real; the people are made up.
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

from shoal.cli.hello_children import Child, children, wait_for
from shoal.cli.hello_population import LABEL, TITLE, csv_of, study_of, table_of
from shoal.cli.new import write_directory
from shoal.clock import SystemClock
from shoal.entropy import SeededEntropy
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.rounding import from_grains, show, show_allowed
from shoal.sim.people import make_people
from shoal.table_files import Table

PEOPLE, MINIMUM = 60, 30
WINDOWS = (10.0, 40.0, 160.0)
"""Seconds in which all have to answer; the next is tried where this machine is too busy for one."""
_LOCAL_SECONDS = 5.0
_TABLES = {"keys": "enrolment", "names": "submission", "answers": "held"}
"""What a coordinator keeps: digests of the keys that enrolled, names of packets that came, and answers that are not folded in yet."""

Tell = Callable[[str], None]


def serve_once(home: Path, epsilon: float, tell: Tell) -> dict[str, Any]:
    """Run the study, with as long a window as this machine needs; what came of it.

    Parameters
    ----------
    home
        An empty directory.
    epsilon
        The price of one answer: unit person, relation replace, against everyone.
    tell
        Is told what goes on.

    Returns
    -------
    dict
        ``status`` and figures; where it is ``done`` also the ``result``, as the coordinator has published it, and else the ``reason``.
    """
    found: dict[str, Any] = {}
    for attempt, window in enumerate(WINDOWS):
        found = serve_in(home / str(attempt), epsilon, window, tell)
        if found["status"] == "done":
            break
        tell(f"this machine is too busy for a window of {window:g} s")
    return found


def serve_in(place: Path, epsilon: float, window: float, tell: Tell) -> dict[str, Any]:
    """The same with a window of so many seconds, in a directory that is made."""
    drawn = make_people(PEOPLE, SeededEntropy(f"shoal hello, {PEOPLE} people"))
    people = table_of(drawn.columns, drawn.labels)
    text = study_of(epsilon, minimum=MINIMUM, size=PEOPLE, title=f"{TITLE} {PEOPLE} answer for real")
    write_directory(place, {"study.toml": text, "me.csv": csv_of(people, slice(1)), "others.csv": csv_of(people, slice(1, None))})
    with children(place) as start:
        tell("the coordinator starts")
        words = ("--port", "0", "--store", "sqlite:coordinator.db", "--patience", f"{window:g}", "--json")
        coordinator = start("coordinator", "shoal", "serve", "study.toml", *words)
        notice = json.loads(coordinator.first_line())
        url, study = notice["address"], notice["studies"][0]
        agreed = ("--yes", "--max-epsilon", repr(epsilon), "--ledger", "me.db", "--out", "mine", "--json")
        me = start("participant", "shoal", "join", url, "--data", "me.csv", *agreed)
        fleet = ("--data", "others.csv", "--participants", str(PEOPLE - 1), "--directory", "people")
        others = start("fleet", "shoal.participant.fleet", url, *fleet)
        wait_for([me, others], lambda: tell(_standing(coordinator, url, study["digest"], window)))
        progress = _progress(url, study["digest"])
    found = {name: progress[name] for name in ("status", "reason", "enrolled", "accepted")}
    found |= {"address": url, "digest": study["digest"], "short": study["short"], "window_seconds": window, "people": PEOPLE}
    if progress["status"] == "failed" or progress["accepted"] < PEOPLE:
        # Whoever comes too late is refused, which is as it should be.
        return found | {"status": "failed", "reason": progress["reason"] or f"{progress['accepted']} of {PEOPLE} answered in time."}
    for child in (me, others):
        if child.code != 0:
            raise child.failure()
    return found | {
        "packet_bytes": study["label"]["bytes"],
        "sent": json.loads(me.said)["sent"],
        "ledger": _ledger(place / "me.db"),
        "store": _store(place, study["digest"]),
        "result": json.loads((place / "mine" / "model.json").read_text("utf-8")),
    }


def _standing(coordinator: Child, url: str, study: str, window: float) -> str:
    """How far the study is, in words; the coordinator counts people in tens while it is open."""
    if coordinator.has_ended:
        raise coordinator.failure()
    with suppress(httpx2.HTTPError):
        progress = _progress(url, study)
        return f"{progress['enrolled']} enrolled, {progress['accepted']} answered, each at a time of its own in {window:g} s"
    return "the coordinator is busy"


def _progress(url: str, study: str) -> dict[str, Any]:
    answer = httpx2.get(f"{url}/v1/studies/{study}/progress", timeout=_LOCAL_SECONDS)
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def _ledger(path: Path) -> dict[str, Any]:
    """What one participant's ledger says."""
    with LedgerFile(path, SystemClock()) as ledger:
        head = str(ledger.verify())
        [total], [entry] = ledger.totals(), ledger.entries()
        [limit] = [usage for usage in ledger.limits() if usage.limit.unit is entry.event.scope.unit]
        return {
            "state": entry.state.value,
            "spent": show(from_grains(total.spent)),
            "unit": entry.event.scope.unit.value,
            "relation": entry.event.scope.relation.value,
            "limit": show_allowed(from_grains(limit.limit.grains or 0)),
            "period": limit.limit.period.value,
            "head": head,
        }


def _store(place: Path, study: str) -> dict[str, int]:
    """What the coordinator's file holds about those who answered, and in how many of them it has the answer they sent."""
    file = place / "coordinator.db"
    with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
        counts = {word: int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]) for word, table in _TABLES.items()}
    content = b"".join(path.read_bytes() for path in place.glob("coordinator.db*"))
    sent = [answer for path in (place / "me.db", *sorted((place / "people").glob("*.db"))) for answer in _answers(path, study)]
    return {**counts, "searched": len(sent), "found": sum(answer in content for answer in sent)}


def _answers(path: Path, study: str) -> list[bytes]:
    with LedgerFile(path, SystemClock()) as ledger:
        return [ledger.payload(study, entry.release.question) for entry in ledger.entries() if entry.study == study]


def right_answers(result: dict[str, Any], table: Table) -> float:
    """Accuracy of the published model on a table."""
    from shoal.models import read_model

    return float(np.mean(read_model(result).predict(table) == table[LABEL]))


def served_lines(served: dict[str, Any]) -> list[tuple[str, str]]:
    """What happened, in words."""
    started = ("a coordinator", f"`shoal serve` at {served['address']}, and {served['people']} participants in two other processes")
    if served["status"] != "done":
        return [started, ("left out", f"This machine is too busy: in {served['window_seconds']:g} s {served['reason']}")]
    ledger, store = served["ledger"], served["store"]
    scope = f"{ledger['unit']}, {ledger['relation']}, against everyone"
    right = ", ".join(f"{name} {100 * value:.1f} %" for name, value in served["scores"].items())
    kept = f"{store['keys']} digests of keys, {store['names']} names of packets, {store['answers']} answers"
    spent = f"spent {ledger['spent']} of {ledger['limit']} a {ledger['period']}"
    return [
        started,
        (
            "they agree",
            f"to digest {served['short']}: epsilon {ledger['spent']} each ({scope}); one packet of {served['packet_bytes']} bytes",
        ),
        ("they answer", f"{served['enrolled']} enrolled, {served['accepted']} packets with a one-time token, each at a time of its own"),
        ("it is learned", f"right answers: {right}; so few teach next to nothing, and a crowd what stands above"),
        ("it keeps", f"{kept}; of {store['searched']} answers as they were sent, {store['found']} are in its files"),
        ("one ledger", f"{ledger['state']}, {served['sent']['bytes']} bytes; {spent} ({scope}); head {ledger['head'][:21]}..."),
    ]
