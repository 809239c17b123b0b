"""Benchmark ``flower``: processor time of an update against Flower's deployment engine.

Server and client count together. A second part kills both servers in the middle of a run.

The model is logistic with 387 weights; each client computes the gradient of ten rows. TLS uses one
certificate, and everything runs on this machine. Start-up does not count: the figures are the cost
of additional updates. For shoal this is the difference of two runs with the same devices, one with
more updates. For Flower it is the time between the ends of two rounds of one run, as the mean of a
run before shoal's runs and a run after them.

Flower
    A SuperLink with its state in memory and two SuperNodes, FedAvg, no evaluation. A round is one
    update of each node. Flower's command line does not count.
shoal
    ``shoal serve`` with a SQLite file, so that each acknowledged update is on the disk. 20 devices
    in one process. Updates are signed and have noise.

``cpu_vs_flower_deployment`` uses the participants of ``shoal join``, which write ledger and journal
to the disk before they send anything. ``..._in_memory`` uses devices that store nothing, as
Flower's client. No real participant may do that.

The second part kills (``kill -9``) and restarts Flower's SuperLink with ``--database``, and ``shoal
serve`` with its file.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.measure import Measure
from benchmarks.speed.flower.ours import Kind, coordinator
from benchmarks.speed.flower.theirs import N_NODES, federation, version
from benchmarks.speed.processes import until

BENCH = "flower"
TIMES_FLOWER = 500
_KINDS: dict[Kind, tuple[str, int | None]] = {
    "participants": ("", TIMES_FLOWER),
    "devices": ("_in_memory", None),
}
"""Kinds of shoal devices, with the suffix of their measures and the target."""
_FIRST_ROUND, _LAST_ROUND = 1, 6
_FEW, _MANY = 10, 60
"""Updates of each device in the two runs."""
_KILLED_UPDATES, _KILLED_PATIENCE, _KILLED_AT_ONCE, _KILLED_AFTER = 15, 120.0, 5, 8
_KILLED_ROUNDS, _KILLED_ROUND = 4, 2
_DOWN_SECONDS, _MAX_SECONDS = 2.0, 600.0


def measures(only: str = "") -> Iterator[Measure]:
    """Yield the measures of both parts, or of the part with a name that contains `only`."""
    parts: dict[str, Callable[[], Iterator[Measure]]] = {
        "cpu": _measure_cpu,
        "kill": _measure_kills,
    }
    for name, part in parts.items():
        if only in name:
            yield from part()


def _measure_cpu() -> Iterator[Measure]:
    competitor = f"Flower {version()}, deployment engine"
    before, spent, after = (
        measure_flower_ms(),
        {kind: measure_shoal_ms(kind) for kind in _KINDS},
        measure_flower_ms(),
    )
    # Other programs on this machine slow down both sides, and their load may change.
    their_server, their_client = (statistics.mean(pair) for pair in zip(before, after, strict=True))
    theirs = their_server + their_client
    yield Measure(BENCH, "flower_superlink_cpu", their_server, "ms", "lower")
    yield Measure(BENCH, "flower_supernodes_cpu", their_client, "ms", "lower")
    for kind, (suffix, target) in _KINDS.items():
        server, client = spent[kind]
        ours = server + client
        yield Measure(
            BENCH,
            f"coordinator_cpu{suffix}",
            server,
            "ms",
            "lower",
            None,
            competitor,
            server / their_server,
        )
        yield Measure(
            BENCH,
            f"device_cpu{suffix}",
            client,
            "ms",
            "lower",
            None,
            competitor,
            client / their_client,
        )
        yield Measure(
            BENCH,
            f"cpu_vs_flower_deployment{suffix}",
            theirs / ours,
            "x",
            "higher",
            target,
            competitor,
            ours / theirs,
        )


def measure_flower_ms() -> tuple[float, float]:
    """Return milliseconds per update of the SuperLink and the SuperNodes, with their children."""
    with (
        tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder,
        federation(Path(folder)) as flower,
    ):
        flower.run(_LAST_ROUND)
        flower.wait_for(_FIRST_ROUND)
        before = flower.cpu()
        flower.wait_for(_LAST_ROUND)
        after = flower.cpu()
    n_updates = N_NODES * (_LAST_ROUND - _FIRST_ROUND)
    server, client = (
        1e3 * (late - early) / n_updates for early, late in zip(before, after, strict=True)
    )
    return server, client


def measure_shoal_ms(kind: Kind) -> tuple[float, float]:
    """Return milliseconds per update of the coordinator and of the devices."""
    (few, *least), (many, *most) = (_run_study(kind, n_updates) for n_updates in (_FEW, _MANY))
    server, client = (
        1e3 * (more - less) / (many - few) for less, more in zip(least, most, strict=True)
    )
    return server, client


def _run_study(kind: Kind, n_updates: int) -> tuple[int, float, float]:
    """Return the updates sent, and processor seconds of the coordinator and of the devices."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        with coordinator(Path(folder), n_updates) as ours:
            before = ours.programs[0].cpu()
            ours.programs.append(devices := ours.join(kind))
            client = devices.wait(_MAX_SECONDS)
            server = ours.programs[0].cpu() - before
        _, merged, dropped = ours.count_updates()
        if merged + dropped != ours.n_expected:
            raise RuntimeError(
                f"{ours.n_expected} updates were acknowledged; the store has {merged + dropped}"
            )
        return ours.n_expected, server, client


def _measure_kills() -> Iterator[Measure]:
    status, n_rounds = _kill_theirs()
    print(
        f"Flower's run after its SuperLink was killed and started again: {status}, {n_rounds} of "
        f"{_KILLED_ROUNDS} rounds",
        file=sys.stderr,
    )
    yield Measure(
        BENCH, "flower_completes_after_kill", float(status == "finished:completed"), "run", "higher"
    )
    yield Measure(BENCH, "flower_rounds_after_kill", n_rounds, f"of {_KILLED_ROUNDS}", "higher")
    is_done, n_lost = _kill_ours()
    yield Measure(BENCH, "completes_after_kill", float(is_done), "run", "higher", target=1)
    yield Measure(BENCH, "lost_after_kill", n_lost, "updates", "lower", target=0)


def _kill_theirs() -> tuple[str, int]:
    """Return the status of Flower's run at its end or after a timeout, and its last round."""
    with (
        tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder,
        federation(Path(folder), is_kept=True) as flower,
    ):
        run = flower.run(_KILLED_ROUNDS)
        flower.wait_for(_KILLED_ROUND)
        flower.programs[0].kill()
        time.sleep(_DOWN_SECONDS)
        flower.programs.append(flower.start_link())
        until(
            lambda: flower.status(run).startswith("finished"),
            _MAX_SECONDS / 2,
            flower.programs[1:],
        )
        return flower.status(run), max(flower.seen)


def _kill_ours() -> tuple[bool, int]:
    """Return whether the study ended with a model, and how many acknowledged updates are lost."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        with coordinator(Path(folder), _KILLED_UPDATES, patience=_KILLED_PATIENCE) as ours:
            ours.programs.append(devices := ours.join("participants", _KILLED_AT_ONCE))
            until(lambda: f"{_KILLED_AFTER} of " in devices.said, _MAX_SECONDS, ours.programs)
            ours.programs[0].kill()
            time.sleep(_DOWN_SECONDS)
            ours.programs.append(ours.start())
            devices.wait(_MAX_SECONDS)
            is_done = until(ours.has_model, _KILLED_PATIENCE, ours.programs[-1:])
        _, merged, dropped = ours.count_updates()
        return is_done, ours.n_expected - merged - dropped
