"""The page of the documentation on a coordinator under load, whole, from the measures of one run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

from benchmarks.measure import Measure, table
from benchmarks.speed.server_load import N_CONNECTIONS
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

Measured on {date}, on {cores} cores; their load was {before:.1f} before and {after:.1f} after. This page is what the command prints:

```
python -m benchmarks run server --markdown > docs/benchmarks/server.md
```

It took {minutes:.0f} minutes. `--only` takes a part of a name (387, 50k, memory, sqlite, redis, token, anonml, sdq), `--seeds` the number
of turns, here {turns}.

`shoal serve` with one worker or two, plain HTTP on loopback, as processes of their own. The loader is another: our own
(`benchmarks/speed/server_load.py`), one thread, {connections} connections that are kept open (64 for AnonML), each of which sends a
request, waits for the whole answer, and sends the next. wrk could not send updates with an id and an epoch of their own without a script
for each request. The loader has limits too: one core at most, which it shares with the coordinator where there are two; and since all
connections are always waiting, p50 and p99 are those of a queue of {connections}, not of a coordinator that is asked now and then."""

_PAIRS = """
## DDML: pairs against an echo

- A *pair* is one draw (p weights come) and one update (p weights go): two requests. Updates carry half the study's noise, so that
  the filter against spam lets all of them in, an id of their own, and the epoch of their draw. `merge` is `blend`, with averaging over
  time: the defaults.
- An *echo* takes the body of an update and sends it back, in one request: in front of the coordinator's own application, in the same
  process, on the same uvicorn. It has the headers of a draw, and leaves as draws and updates do, in one write. The answer to a draw
  is 16 bytes shorter than the echo's. An *ASGI echo* leaves as the answers of any application of uvicorn's do, by two messages and in two
  writes; the target is held against the faster one.
- *ratio* is pairs a second over half the echoes a second: 1 where a draw and an update cost together what two echoes do. Echoes and pairs
  are measured by turns of {seconds:g} s, and the ratio is the median over the turns. *CPU ratio* is the same in processor time of the
  coordinator, with all its workers and with Redis; it is what remains if others use the machine. *pair* and *echo* are these processor
  times.
- *coordinator* and *loader* are the cores that each kept busy during the pairs. Where the coordinator's is near its number of workers, it
  is the bottleneck; where the loader's is near 1, the loader is; where neither is busy, the store's disk is, or somebody else has the
  cores.
- At the end of each run the instances must have seen exactly as many updates as were acknowledged, or there are no figures.
- What keeps a pair from 1 is what an update is for: the filter against spam, the blend, and the mean and spread of all instances. For
  models of 10,000 weights and more they are compiled by numba, which the extra `sim` has and this run has used; without it they are some
  twenty passes of NumPy, which take longer.
- Admission is the last word of a row: `open`, or `token` with `--tickets`, where each update spends one number of a ticket, written to
  the disk before it is answered. SQLite merges what waits in one transaction, and a merge survives any death of a process. Redis is asked
  for one instance and one merge at a time, over a socket of the machine, and keeps no file here."""

_REST = """
## AnonML and SDQ

- 4,000 people enrol by signed requests, then each sends one answer (with `--tickets`; what tokens cost is [measured](tokens.md) apart):
  64 connections, one worker, SQLite with a synchronised write before every acknowledgement. All that was acknowledged is counted.
  Submissions that wait together are written together, enrolments one by one.
- Ten databases with ledgers and journals of their own, all in one process by the code of `shoal join`, answer five histograms of 10,000
  cells by secure sums through the mailboxes. A round's seconds are all parties' together on the cores of this machine, and include
  enrolment and the small round of the model."""

_END = """
## Ten minutes

`make soak` has ten minutes of steady load on two workers with SQLite (`tests/e2e/test_steady_load.py`): memory within 5 % after the first
two, and exactly as many updates merged as were acknowledged."""


def lines(measures: Iterable[Measure], n_turns: int, seconds: float) -> Iterator[str]:
    """The page; parts that were not measured are left out."""
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
        yield "\n| instances in memory, one worker | ratio | CPU ratio | target | | ratio to ASGI echo |\n|---|---:|---:|---:|---|---:|"
    for one in aims:
        case = f"ddml_{one.measure.split('_')[2]}_memory_1_open"
        by_cpu, plain = found[f"{case}_cpu_ratio"].value, found[f"{case}_vs_echo_asgi"].value
        verdict = "met" if one.value >= (one.target or 0) else "**not met**"
        yield f"| `{one.measure}` | {one.value:.2f} | {by_cpu:.2f} | {one.target:g} | {verdict} | {plain:.2f} |"


def _cases(cases: Iterable[str], found: dict[str, Measure]) -> Iterator[str]:
    yield f"\n| weights, models, workers, admission | {' | '.join(_COLUMNS)} |"
    yield "|---|" + "---:|" * len(_COLUMNS)
    for case in cases:
        in_memory = f"ddml_pairs_{case.split('_')[1]}_vs_echo"
        named = {column: found.get(f"{case}_{name}") or found[in_memory] for column, name in _COLUMNS.items()}
        shown = [f"{one.value:,.3g}" if one.value < 1e3 else f"{one.value:,.0f}" for one in named.values()]
        yield f"| {_shown(case)} | {' | '.join(shown)} |"


def _bottleneck(cases: Iterable[str], found: dict[str, Measure]) -> str:
    """How much more of the processors the coordinator needed than the loader, in the case where that was least."""
    times = {case: found[f"{case}_coordinator_busy"].value / found[f"{case}_loader_busy"].value for case in cases}
    least = min(times, key=times.__getitem__)
    whose = f"the coordinator needed at least {times[least]:.1f} times the processor time of the loader ({_shown(least)})"
    held = [_shown(case) for case in times if found[f"{case}_loader_busy"].value > _ALL_OF_A_CORE]
    return f"\nDuring the pairs {whose}. The loader was at its limit in {'; '.join(held) or 'none of these runs'}."


def _shown(case: str) -> str:
    return case.removeprefix("ddml_").replace("_", ", ")
