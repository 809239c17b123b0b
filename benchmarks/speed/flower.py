"""Processor time of an update, server and client together, against Flower's deployment engine; and both servers killed in the middle.

A logistic model of 387 weights, the gradient of ten rows at home, TLS with one certificate, all on this machine. Start-up is left out on
both sides: figures are what more updates cost. Here that is two runs with the same devices, one of which sends more updates; there it
is what is spent between the ends of two rounds of one run, the mean of a run before ours and one after.

Flower: a SuperLink with its state in memory and two SuperNodes, FedAvg, no evaluation; a round is one update of each. Its command line is
not counted. Shoal: ``shoal serve`` with a SQLite file, so that each acknowledged update is on the disk; 20 devices in one process; updates
are signed and carry noise.

``cpu_vs_flower_deployment`` is with the participants of ``shoal join``, whose ledger and journal are on the disk before anything leaves.
``..._in_memory`` is with devices that write nothing down, as Flower's client does not either: no participant may do that.

Killed (``kill -9``) and started again in the middle: Flower's SuperLink with ``--database``, ``shoal serve`` with its file.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.measure import Measure
from benchmarks.speed.flower_ours import Kind, coordinator
from benchmarks.speed.flower_theirs import N_NODES, federation, version
from benchmarks.speed.processes import until

BENCH = "flower"
TIMES_FLOWER = 500
_KINDS: dict[Kind, tuple[str, int | None]] = {"participants": ("", TIMES_FLOWER), "devices": ("_in_memory", None)}
"""Devices of ours, with the end of the names of their measures and the target."""
_FIRST_ROUND, _LAST_ROUND = 1, 6
_FEW, _MANY = 10, 60
"""Updates of each device in the two runs."""
_KILLED_UPDATES, _KILLED_PATIENCE, _KILLED_AT_ONCE, _KILLED_AFTER = 15, 120.0, 5, 8
_KILLED_ROUNDS, _KILLED_ROUND = 4, 2
_DOWN_SECONDS, _MOST_SECONDS = 2.0, 600.0


def measures(only: str = "") -> Iterator[Measure]:
    """Both parts, or the one that has a text in its name: cpu, kill."""
    parts: dict[str, Callable[[], Iterator[Measure]]] = {"cpu": _cpu, "kill": _kill}
    for name, part in parts.items():
        if only in name:
            yield from part()


def _cpu() -> Iterator[Measure]:
    peer = f"Flower {version()}, deployment engine"
    before, spent, after = theirs_ms(), {kind: ours_ms(kind) for kind in _KINDS}, theirs_ms()
    # What else runs on the machine makes both dearer, and may have changed meanwhile.
    their_server, their_client = (statistics.mean(pair) for pair in zip(before, after, strict=True))
    theirs = their_server + their_client
    yield Measure(BENCH, "flower_superlink_cpu", their_server, "ms", "lower")
    yield Measure(BENCH, "flower_supernodes_cpu", their_client, "ms", "lower")
    for kind, (suffix, target) in _KINDS.items():
        server, client = spent[kind]
        ours = server + client
        yield Measure(BENCH, f"coordinator_cpu{suffix}", server, "ms", "lower", None, peer, server / their_server)
        yield Measure(BENCH, f"device_cpu{suffix}", client, "ms", "lower", None, peer, client / their_client)
        yield Measure(BENCH, f"cpu_vs_flower_deployment{suffix}", theirs / ours, "x", "higher", target, peer, ours / theirs)


def theirs_ms() -> tuple[float, float]:
    """Milliseconds of an update: SuperLink and SuperNodes, each with what it starts."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder, federation(Path(folder)) as flower:
        flower.run(_LAST_ROUND)
        flower.wait_for(_FIRST_ROUND)
        before = flower.cpu()
        flower.wait_for(_LAST_ROUND)
        after = flower.cpu()
    n_updates = N_NODES * (_LAST_ROUND - _FIRST_ROUND)
    server, client = (1e3 * (late - early) / n_updates for early, late in zip(before, after, strict=True))
    return server, client


def ours_ms(kind: Kind) -> tuple[float, float]:
    """Milliseconds of an update: the coordinator, and the devices."""
    (few, *least), (many, *most) = (_spent(kind, n_updates) for n_updates in (_FEW, _MANY))
    server, client = (1e3 * (more - less) / (many - few) for less, more in zip(least, most, strict=True))
    return server, client


def _spent(kind: Kind, n_updates: int) -> tuple[int, float, float]:
    """Updates that were sent, and processor seconds of the coordinator and of the devices."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        with coordinator(Path(folder), n_updates) as ours:
            before = ours.programs[0].cpu()
            ours.programs.append(devices := ours.join(kind))
            client = devices.wait(_MOST_SECONDS)
            server = ours.programs[0].cpu() - before
        _, merged, dropped = ours.counted()
        if merged + dropped != ours.n_expected:
            raise RuntimeError(f"{ours.n_expected} updates were acknowledged, and {merged + dropped} are accounted for")
        return ours.n_expected, server, client


def _kill() -> Iterator[Measure]:
    status, n_rounds = _kill_theirs()
    print(
        f"Flower's run after its SuperLink was killed and started again: {status}, {n_rounds} of {_KILLED_ROUNDS} rounds", file=sys.stderr
    )
    yield Measure(BENCH, "flower_completes_after_kill", float(status == "finished:completed"), "run", "higher")
    yield Measure(BENCH, "flower_rounds_after_kill", n_rounds, f"of {_KILLED_ROUNDS}", "higher")
    is_done, n_lost = _kill_ours()
    yield Measure(BENCH, "completes_after_kill", float(is_done), "run", "higher", target=1)
    yield Measure(BENCH, "lost_after_kill", n_lost, "updates", "lower", target=0)


def _kill_theirs() -> tuple[str, int]:
    """How the run stands when it has ended or nothing more is expected of it, and how many rounds have ended."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder, federation(Path(folder), is_kept=True) as flower:
        run = flower.run(_KILLED_ROUNDS)
        flower.wait_for(_KILLED_ROUND)
        flower.programs[0].kill()
        time.sleep(_DOWN_SECONDS)
        flower.programs.append(flower.start_link())
        until(lambda: flower.status(run).startswith("finished"), _MOST_SECONDS / 2, flower.programs[1:])
        return flower.status(run), max(flower.seen)


def _kill_ours() -> tuple[bool, int]:
    """Whether the study ended with a model and all participants did what they should; and how many acknowledged updates are missing."""
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        with coordinator(Path(folder), _KILLED_UPDATES, patience=_KILLED_PATIENCE) as ours:
            ours.programs.append(devices := ours.join("participants", _KILLED_AT_ONCE))
            until(lambda: f"{_KILLED_AFTER} of " in devices.said, _MOST_SECONDS, ours.programs)
            ours.programs[0].kill()
            time.sleep(_DOWN_SECONDS)
            ours.programs.append(ours.start())
            devices.wait(_MOST_SECONDS)
            is_done = until(ours.has_model, _KILLED_PATIENCE, ours.programs[-1:])
        _, merged, dropped = ours.counted()
        return is_done, ours.n_expected - merged - dropped
