"""A coordinator under load over HTTP: DDML pairs, AnonML submissions, SDQ rounds.

A *pair* is one draw (p weights received) and one update (p weights sent). An *echo* sends the body
of an update back, in the same process, on the same uvicorn, with a draw's headers and by the same
single write. ``pairs_vs_echo`` is pairs a second over half the echoes a second: it is 1 if a draw
and an update together cost the same as two echoes. Both are loaded by 16 open connections, in turns
of a second or two each; the ratio is the median over the turns. ``cpu_ratio`` is the same in
processor time of the coordinator, which depends less on other load.

Updates contain half the noise of honest ones, so that the spam filter accepts all of them, and have
distinct ids and the epoch of their draw. At the end of each run, the number of merged updates is
compared with the number acknowledged.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from benchmarks.measure import Measure
from benchmarks.speed.server import databases as server_databases
from benchmarks.speed.server import page as server_page
from benchmarks.speed.server import people as server_people
from benchmarks.speed.server.load import Load, Talk, Tally, echoes, head, load
from benchmarks.speed.server.runs import (
    Admission,
    Coordinator,
    coordinator,
    ddml_text,
    honest_weights,
)
from shoal.entropy import SystemEntropy
from shoal.transport.api import TICKET_BYTES, study_route

BENCH = "server"
SIZES = {387: ("387", 0.6), 50_000: ("50k", 0.8)}
"""Weights: names in measures, and target of pairs against echoes with instances in memory."""
TURNS, SECONDS = 5, 1.2
N_TICKETS, N_UPDATES = 2_000, 16
"""Tickets, and updates of each: more than are sent."""
_WARM_SECONDS = 0.5

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Case:
    """A study of p weights, and how it is served."""

    p: int
    models: str
    workers: int
    admission: Admission = "open"

    @property
    def name(self) -> str:
        return f"ddml_{SIZES[self.p][0]}_{self.models}_{self.workers}_{self.admission}"


CASES = [
    *(
        Case(p, models, workers)
        for p in SIZES
        for models in ("memory", "sqlite", "redis")
        for workers in ((1,) if models == "memory" else (1, 2))
    ),
    Case(387, "sqlite", 1, "token"),
]


@dataclass(frozen=True)
class Turn:
    """Echoes, then pairs, with the coordinator's processor seconds for each.

    Echoes by ASGI messages are optional.
    """

    echo: Load
    echo_cpu: float
    pairs: Load
    pairs_cpu: float
    by_messages: Load | None = None

    @property
    def ratio(self) -> float:
        return 2 * self.pairs.rate / self.echo.rate

    @property
    def ratio_by_messages(self) -> float:
        assert self.by_messages is not None
        return 2 * self.pairs.rate / self.by_messages.rate

    @property
    def cpu_ratio(self) -> float:
        return 2 * self.echo_cpu / self.pairs_cpu


def measures(seeds: int = TURNS, only: str = "") -> Iterator[Measure]:
    """Yield all parts, or those with a text in their names; ``seeds`` is the number of turns."""
    for case in CASES:
        if only in case.name and (
            case.models != "redis" or shutil.which("redis-server") is not None
        ):
            yield from _ddml(case, seeds)
    for name, part in (("anonml", server_people), ("sdq", server_databases)):
        if only in name:
            yield from part.measures(BENCH)


def markdown(seeds: int = TURNS, only: str = "") -> Iterator[str]:
    """Yield the page of the documentation."""
    yield from server_page.lines(measures(seeds, only), seeds, SECONDS)


def _ddml(case: Case, n_turns: int) -> Iterator[Measure]:
    text = ddml_text(case.p, case.admission, 1 if case.admission == "open" else N_UPDATES)
    bodies = honest_weights(text)
    with coordinator(text, models=case.models, workers=case.workers) as served:
        tickets = _enrol(served) if case.admission == "token" else ()
        before, talk = served.megabytes(), pairs(served.study, bodies, tickets)
        lengths = [_WARM_SECONDS, *[SECONDS] * n_turns]
        turns = [
            _turn(served, bodies, talk, seconds, has_messages=case.models == "memory")
            for seconds in lengths
        ]
        n_sent, n_merged = sum(turn.pairs.n for turn in turns), served.n_merged()
        if n_merged != n_sent:
            raise RuntimeError(f"{n_sent} updates were acknowledged and {n_merged} merged")
        after = served.megabytes()
    yield from _figures(case, turns[1:])
    yield Measure(BENCH, f"{case.name}_memory_before", before, "MB", "lower")
    yield Measure(BENCH, f"{case.name}_memory_after", after, "MB", "lower")


def _figures(case: Case, turns: Sequence[Turn]) -> Iterator[Measure]:
    name, target = SIZES[case.p]
    ratio = statistics.median(turn.ratio for turn in turns)
    if case.models == "memory":
        yield Measure(
            BENCH,
            f"ddml_pairs_{name}_vs_echo",
            ratio,
            "x",
            "higher",
            target,
            "half the echo rate of the same process",
            ratio,
        )
        plain = statistics.median(turn.ratio_by_messages for turn in turns)
        yield Measure(
            BENCH,
            f"{case.name}_vs_echo_asgi",
            plain,
            "x",
            "higher",
            None,
            "half the rate of an echo by ASGI's messages",
            plain,
        )
    else:
        yield Measure(
            BENCH,
            f"{case.name}_vs_echo",
            ratio,
            "x",
            "higher",
            None,
            "half the echo rate of the same process",
            ratio,
        )
    medians: dict[tuple[str, str, Better], Callable[[Turn], float]] = {
        ("cpu_ratio", "x", "higher"): lambda turn: turn.cpu_ratio,
        ("pairs", "1/s", "higher"): lambda turn: turn.pairs.rate,
        ("echoes", "1/s", "higher"): lambda turn: turn.echo.rate,
        ("cpu", "us", "lower"): lambda turn: 1e6 * turn.pairs_cpu,
        ("echo_cpu", "us", "lower"): lambda turn: 1e6 * turn.echo_cpu,
        ("p50", "ms", "lower"): lambda turn: turn.pairs.p50,
        ("p99", "ms", "lower"): lambda turn: turn.pairs.p99,
        ("coordinator_busy", "cores", "lower"): lambda turn: turn.pairs_cpu * turn.pairs.rate,
        ("loader_busy", "cores", "lower"): lambda turn: turn.pairs.busy,
    }
    for (what, unit, better), value_of in medians.items():
        yield Measure(
            BENCH, f"{case.name}_{what}", statistics.median(map(value_of, turns)), unit, better
        )


def _turn(
    served: Coordinator,
    bodies: Sequence[bytes],
    talk: Callable[[Tally], Talk],
    seconds: float,
    *,
    has_messages: bool = False,
) -> Turn:
    n_bytes, sent = 24 + len(bodies[0]), [bytes(24) + body for body in bodies]
    by_messages = (
        load(served.port, echoes(sent, "/echo-asgi"), seconds, n_bytes) if has_messages else None
    )
    start = served.cpu_seconds()
    echo = load(served.port, echoes(sent), seconds, n_bytes)
    between = served.cpu_seconds()
    paired = load(served.port, talk, seconds, n_bytes)
    end = served.cpu_seconds()
    return Turn(echo, (between - start) / echo.n, paired, (end - between) / paired.n, by_messages)


def pairs(
    study: str, bodies: Sequence[bytes], tickets: Sequence[bytes] = ()
) -> Callable[[Tally], Talk]:
    """Yield draws and updates in turn; each update has a new id.

    They use tickets until none is left.
    """
    draw = head(study_route(study, "draw"), 0)
    path, n_bytes = study_route(study, "update"), 24 + len(bodies[0])
    update, prefix = head(path, n_bytes), SystemEntropy().bytes(8)
    numbers = iter(range(N_UPDATES * len(tickets))) if tickets else count()

    def talk(tally: Tally) -> Talk:
        for number in numbers:
            began = time.perf_counter()
            status, drawn = yield (draw,)
            if status != 200:
                raise RuntimeError(f"a draw was answered with {status}")
            named = prefix + number.to_bytes(8, "little") + bytes(drawn[:8])
            request = head(path, n_bytes, _ticket(tickets, number)) if tickets else update
            status, _ = yield request, named, bodies[number % len(bodies)]
            if status != 202:
                raise RuntimeError(f"an update was answered with {status}")
            tally.note(began)
            if not tally.is_on:
                return

    return talk


def _ticket(tickets: Sequence[bytes], number: int) -> str:
    """Return the header of one update: the updates of a ticket follow each other."""
    return f"shoal-ticket: {tickets[number // N_UPDATES].hex()} {number % N_UPDATES}"


def _enrol(served: Coordinator, n: int = N_TICKETS) -> list[bytes]:
    """Return issued tickets."""
    entropy = SystemEntropy()
    tickets = [entropy.bytes(TICKET_BYTES) for _ in range(n)]
    server_people.enrol(served, tickets)
    return tickets
