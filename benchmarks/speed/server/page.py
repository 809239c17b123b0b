"""The documentation page on a coordinator under load, from the measures of one run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

from benchmarks.measure import Measure, table
from benchmarks.speed.server.load import N_CONNECTIONS
from shoal.clock import SystemClock

_COLUMNS = {
    "pairs, 1/s": "pairs",
    "echoes, 1/s": "echoes",
    "ratio": "vs_echo",
    "CPU ratio": "cpu_ratio",
    "pair, µs": "cpu",
    "echo, µs": "echo_cpu",
    "p50, ms": "p50",
    "p99, ms": "p99",
    "MB before": "memory_before",
    "MB after": "memory_after",
    "coordinator": "coordinator_busy",
    "loader": "loader_busy",
}

_ALL_OF_A_CORE = 0.9

_TOP = """# A coordinator under load

Measured on {date}, on {cores} cores; their load was {before:.1f} before and {after:.1f} after.
This page is the output of the command:

```
python -m benchmarks run server --markdown > docs/benchmarks/server.md
```

It took {minutes:.0f} minutes.
`--only` takes a part of a name (387, 50k, memory, sqlite, redis, token, anonml, sdq).
`--seeds` is the number of turns, here {turns}.

`shoal serve` runs with one worker or two, plain HTTP on loopback, as separate processes.
The load generator is another process (`benchmarks/speed/server/load.py`):
one thread with {connections} open connections (64 for AnonML),
each of which sends a request, waits for the whole answer, and sends the next.
wrk could not send updates with distinct ids and epochs without a script for each request.
The load generator has limits too: one core at most, which it shares with the coordinator
on a machine with two.
All connections are always waiting, so p50 and p99 are those of a queue of {connections},
not of a coordinator with occasional requests."""

_PAIRS = """
## DDML: pairs against an echo

- A *pair* is one draw (p weights received) and one update (p weights sent): two requests.
  Updates contain half the study's noise, so that the spam filter accepts all of them.
  Each has a distinct id, and the epoch of its draw.
  `merge` is `blend`, with averaging over time: the defaults.
- An *echo* sends the body of an update back, in one request.
  It runs in front of the coordinator's application, in the same process, on the same uvicorn.
  It has the headers of a draw, and is sent in one write, like draws and updates.
  The answer to a draw is 16 bytes shorter than the echo.
  An *ASGI echo* is sent like the answers of any uvicorn application, by two messages in two writes.
  The target is compared with the faster one.
- *ratio* is pairs a second over half the echoes a second.
  It is 1 if a draw and an update together cost the same as two echoes.
  Echoes and pairs are measured in turns of {seconds:g} s; the ratio is the median over the turns.
  *CPU ratio* is the same in processor time of the coordinator, with all its workers and Redis.
  It depends less on other load of the machine.
  *pair* and *echo* are these processor times.
- *coordinator* and *loader* are the cores that each kept busy during the pairs.
  If the coordinator's is near its number of workers, it is the bottleneck.
  If the loader's is near 1, the load generator is the bottleneck.
  If neither is busy, it is the store's disk, or another process uses the cores.
- At the end of each run, the number of merged updates must equal the number acknowledged;
  otherwise there are no figures.
- A pair costs more than two echoes because of the work of an update:
  the spam filter, the blend, and the mean and spread of all instances.
  For models of 10,000 weights and more, numba compiles it (extra `sim`), as in this run.
  Without numba it is some twenty passes of NumPy, which take longer.
- Admission is the last word of a row: `open`, or `token` with `--tickets`.
  With `token`, each update spends one number of a ticket, written to disk before the answer.
  SQLite merges waiting updates in one transaction, and a merge survives the death of any process.
  Redis handles one instance and one merge at a time, over a local socket, without a file."""

_REST = """
## AnonML and SDQ

- 4,000 people enrol by signed requests, then each sends one answer with `--tickets`.
  The cost of tokens is [measured separately](tokens.md).
  64 connections, one worker, SQLite with a synchronised write before every acknowledgement.
  All acknowledged answers are counted.
  Waiting submissions are written together, enrolments one by one.
- Ten databases, each with a ledger and a journal, answer five histograms of 10,000 cells.
  They run in one process by the code of `shoal join`, with secure sums through the mailboxes.
  The seconds of a round are those of all parties together on the cores of this machine.
  They include enrolment and the small round of the model."""

_END = """
## Ten minutes

`make soak` runs ten minutes of steady load on two workers with SQLite
(`tests/e2e/test_steady_load.py`).
Memory stays within 5 % after the first two minutes, and all acknowledged updates are merged."""


def lines(measures: Iterable[Measure], n_turns: int, seconds: float) -> Iterator[str]:
    """Yield the page without the parts that were not measured."""
    before, began = os.getloadavg()[0], time.monotonic()
    found = {one.measure: one for one in measures}
    yield _TOP.format(
        date=f"{SystemClock().now():%-d %B %Y}",
        cores=os.cpu_count(),
        before=before,
        after=os.getloadavg()[0],
        minutes=(time.monotonic() - began) / 60,
        turns=n_turns,
        connections=N_CONNECTIONS,
    )
    cases = [name.removesuffix("_pairs") for name in found if name.endswith("_pairs")]
    if cases:
        yield _PAIRS.format(seconds=seconds)
        yield from _targets(found)
        yield from _cases(cases, found)
        yield _bottleneck(cases, found)
    rest = [one for name, one in found.items() if not name.startswith("ddml_")]
    if rest:
        yield _REST
        yield ""
        yield from table(iter(rest))
    yield _END


def _targets(found: dict[str, Measure]) -> Iterator[str]:
    aims = [one for one in found.values() if one.target is not None]
    if aims:
        yield (
            "\n| instances in memory, one worker | ratio | CPU ratio | target | | ratio to ASGI "
            "echo |\n|---|---:|---:|---:|---|---:|"
        )
    for one in aims:
        case = f"ddml_{one.measure.split('_')[2]}_memory_1_open"
        by_cpu, plain = found[f"{case}_cpu_ratio"].value, found[f"{case}_vs_echo_asgi"].value
        verdict = "met" if one.value >= (one.target or 0) else "**not met**"
        yield (
            f"| `{one.measure}` | {one.value:.2f} | {by_cpu:.2f} | {one.target:g} | {verdict} | "
            f"{plain:.2f} |"
        )


def _cases(cases: Iterable[str], found: dict[str, Measure]) -> Iterator[str]:
    yield f"\n| weights, models, workers, admission | {' | '.join(_COLUMNS)} |"
    yield "|---|" + "---:|" * len(_COLUMNS)
    for case in cases:
        in_memory = f"ddml_pairs_{case.split('_')[1]}_vs_echo"
        named = {
            column: found.get(f"{case}_{name}") or found[in_memory]
            for column, name in _COLUMNS.items()
        }
        shown = [
            f"{one.value:,.3g}" if one.value < 1e3 else f"{one.value:,.0f}"
            for one in named.values()
        ]
        yield f"| {_shown(case)} | {' | '.join(shown)} |"


def _bottleneck(cases: Iterable[str], found: dict[str, Measure]) -> str:
    """Return the smallest ratio of processor time of coordinator and load generator."""
    times = {
        case: found[f"{case}_coordinator_busy"].value / found[f"{case}_loader_busy"].value
        for case in cases
    }
    least = min(times, key=times.__getitem__)
    whose = (
        f"the coordinator needed at least {times[least]:.1f} times the processor time of the "
        f"loader ({_shown(least)})"
    )
    held = [_shown(case) for case in times if found[f"{case}_loader_busy"].value > _ALL_OF_A_CORE]
    return (
        f"\nDuring the pairs {whose}. The loader was at its limit in "
        f"{'; '.join(held) or 'none of these runs'}."
    )


def _shown(case: str) -> str:
    return case.removeprefix("ddml_").replace("_", ", ")
