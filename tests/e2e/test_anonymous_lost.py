"""A relay loses acknowledged packets: senders resend the same bytes, and each counts once."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import Counter
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from shoal.coordinator.store import open_store
from shoal.coordinator.store.base import StudyTotals
from shoal.study.manifest import Manifest
from shoal.study.schedule import PhaseWindow
from tests.e2e.anonymous import (
    Fleet,
    Relay,
    Sent,
    TooSlowError,
    View,
    compute_model,
    fetch_manifest,
    fetch_window,
    read_sent_packets,
    run_with_retries,
    wait_for_model,
)
from tests.support.http import capture, read_keys, why_not
from tests.support.participants import make_document
from tests.support.servers import Coordinator, Participant, format_toml, free_port, write_csv
from tests.support.tls import Certificates

N, N_LOST = 12, 5
"""Both those that are lost and those that are not are enough for a batch."""
MINIMUM = 4
PATIENCE = 40.0
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Run:
    """A finished study."""

    manifest: Manifest
    window: PhaseWindow
    people: list[Sent]
    standing: list[str]
    lost: set[bytes]
    view: View
    model: bytes
    totals: StudyTotals
    names: tuple[bytes, ...]


def run(home: Path, patience: float, tls: Certificates) -> Run:
    """Run a study and lose some packets; raise `TooSlowError` if the machine was too slow."""
    for name in ("coordinator", "relay", "fleet"):
        (home / name).mkdir()
    document = make_document("anonml", N, participation={"minimum": MINIMUM, "size": N})
    (home / "coordinator" / "study.toml").write_text(format_toml(document))
    relay_port = free_port()
    with ExitStack() as stack:
        words = (
            "--port",
            "0",
            "--patience",
            str(patience),
            "--relay",
            f"https://127.0.0.1:{relay_port}",
            "--store",
            "sqlite:study.db",
        )
        coordinator = stack.enter_context(
            Coordinator(home / "coordinator", "study.toml", *words, tls=tls)
        )
        manifest, window = fetch_manifest(coordinator), fetch_window(coordinator)
        segments = stack.enter_context(capture(coordinator.port, relay_port))
        begin = partial(Relay, home / "relay", relay_port, coordinator.url, tls)
        fleet = Fleet(
            home / "fleet", coordinator, write_csv(home / "fleet" / "rows.csv", N), N, tls
        )
        stack.callback(fleet.kill)
        with begin():
            while sum(read_status(one) == "sent" for one in fleet.people) < N_LOST:
                check_still_collects(window)
                time.sleep(_LOOK_SECONDS)
        lost = lose(home / "relay" / "relay.db")
        relay = stack.enter_context(begin())
        check_still_collects(window)
        said, model = fleet.end(patience), wait_for_model(coordinator, patience)
        assert (relay.end(), coordinator.end()) == ((0, ""), (0, ""))
    view = View(
        segments,
        {**read_keys(home / "relay" / "relay-keys"), **read_keys(fleet.keys)},
        relay_port,
        coordinator.port,
    )
    check_timing(view, manifest, window)
    fleet.check(said)
    study = manifest.digest.hex()
    with open_store(f"sqlite:{home / 'coordinator' / 'study.db'}") as kept:
        totals, names = kept.count_totals(study), kept.list_submissions(study)
    standing = [read_status(one) or "" for one in fleet.people]
    return Run(
        manifest,
        window,
        read_sent_packets(fleet.people, manifest),
        standing,
        lost,
        view,
        model,
        totals,
        names,
    )


def read_status(one: Participant) -> str | None:
    """Return the status of a participant's packet from its file, or None without packet."""
    if not one.ledger.exists():
        return None
    with closing(sqlite3.connect(f"file:{one.ledger}?mode=ro", uri=True)) as db:
        try:
            found = db.execute("SELECT standing FROM packets").fetchone()
        except sqlite3.OperationalError:
            return None
    return None if found is None else str(found[0])


def lose(spool: Path) -> set[bytes]:
    """Delete some packets from the file of a killed relay; return them."""
    with closing(sqlite3.connect(spool)) as db, db:
        found = db.execute("SELECT place, sealed FROM packets LIMIT ?", (N_LOST,)).fetchall()
        db.executemany("DELETE FROM packets WHERE place = ?", [(place,) for place, _ in found])
    return {sealed for _, sealed in found}


def check_still_collects(window: PhaseWindow) -> None:
    if time.time() >= window.collects_until.timestamp():
        raise TooSlowError("the window was over before packets were lost")


def check_timing(view: View, manifest: Manifest, window: PhaseWindow) -> None:
    """Check that packets came in time: first before the batch left, and resent before the end."""
    collects, resends = window.collects_until.timestamp(), window.resends_until.timestamp()
    posted, batches = (found(manifest.digest.hex()) for found in (view.posted, view.batches))
    times = sorted({request.time for request, _ in batches})
    if (
        not times
        or times[0] > collects + (resends - collects) / 4
        or times[-1] >= window.closes.timestamp()
    ):
        raise TooSlowError("a batch has left later than it should")
    if len({one.body for one in posted if one.time < times[0]}) < N:
        raise TooSlowError(f"of {N} packets some have not come before the others left")
    if any(one.time >= resends for one in posted):
        raise TooSlowError("a packet came again when no more were collected")


@pytest.fixture(scope="module")
def over(certificates: Certificates) -> Run:
    if reason := why_not():
        pytest.skip(reason)
    return run_with_retries(partial(run, tls=certificates), PATIENCE)


def test_lost_packets_are_resent_and_each_person_counts_once(over: Run) -> None:
    collects, resends = (
        over.window.collects_until.timestamp(),
        over.window.resends_until.timestamp(),
    )
    posted, batches = (
        found(over.manifest.digest.hex()) for found in (over.view.posted, over.view.batches)
    )
    first = min(request.time for request, _ in batches)
    assert first >= collects, "packets wait for each other"
    assert len(over.lost) == N_LOST and len({one.body for one in posted}) == N, (
        "the same bytes, whenever they were sent"
    )
    assert {one.body for one in posted if one.time >= first} == over.lost
    on_its_connection = Counter(one.connection.name for one in over.view.to_relay)
    assert {on_its_connection[one.connection.name] for one in posted} == {1}

    assert {sealed for request, sealed in batches if request.time == first} == {
        one.body for one in posted
    } - over.lost
    assert {sealed for request, sealed in batches if request.time > first} == over.lost
    assert min(request.time for request, _ in batches if request.time > first) >= resends, (
        "also these wait for each other"
    )

    assert over.standing == ["seen"] * N
    assert (over.totals.enrolled, over.totals.accepted, over.totals.refused) == (N, N, {})
    assert set(over.names) == {one.name for one in over.people} and len(over.names) == N
    assert json.loads(over.model)["counts"] == {"answers": [N], "late": 0}
    assert over.model == compute_model(over.manifest, [one.packet for one in over.people])
