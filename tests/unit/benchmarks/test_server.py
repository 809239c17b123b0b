"""The benchmark of a coordinator, run briefly: merged pairs compared with echoes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import product
from typing import Any

import httpx2
import pytest

from benchmarks import __main__ as command
from benchmarks.measure import Measure
from benchmarks.speed import server
from benchmarks.speed.server import Case, Turn
from benchmarks.speed.server import page as server_page
from benchmarks.speed.server import process as server_process
from benchmarks.speed.server.load import Load, Talk, Tally, echoes, head, load
from benchmarks.speed.server.runs import Coordinator, coordinator, ddml_text, honest_weights
from shoal.coordinator.ddml.instances.memory import MemoryInstanceStore
from shoal.transport.api import study_route

P = 9


@pytest.fixture(scope="module")
def served() -> Iterator[Coordinator]:
    with coordinator(ddml_text(P, "open"), models="memory") as served:
        yield served


def test_turn_merges_all_pairs_and_compares_with_echoes(served: Coordinator) -> None:
    bodies = honest_weights(ddml_text(P, "open"))
    turn = server._turn(served, bodies, server.pairs(served.study, bodies), 0.3, has_messages=True)
    assert served.n_merged() == turn.pairs.n >= 16
    assert turn.ratio == 2 * turn.pairs.rate / turn.echo.rate
    assert (
        turn.by_messages is not None
        and turn.ratio_by_messages == 2 * turn.pairs.rate / turn.by_messages.rate
    )
    assert turn.cpu_ratio == 2 * turn.echo_cpu / turn.pairs_cpu
    assert 0 < turn.pairs.p50 <= turn.pairs.p99 and 0 < turn.pairs.busy < 2
    assert served.megabytes() > served.own_megabytes() > 10


def test_update_without_a_ticket_is_acknowledged_but_not_merged() -> None:
    text = ddml_text(P, "token", server.N_UPDATES)
    bodies = honest_weights(text)
    with coordinator(text) as served:
        sent = load(
            served.port, server.pairs(served.study, bodies, server._enrol(served, 3)), 60.0, 1000
        )
        assert served.n_merged() == sent.n == 3 * server.N_UPDATES
        assert load(served.port, server.pairs(served.study, bodies), 0.1, 1000).n >= 16
        assert served.n_merged() == sent.n


def test_echo_has_the_headers_of_a_draw_and_one_write(
    served: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    echoed, drawn = (
        httpx2.post(f"{served.url}{path}", content=b"body")
        for path in ("/echo", study_route(served.study, "draw"))
    )
    assert echoed.content == b"body" and set(echoed.headers) == set(drawn.headers)
    by_messages = httpx2.post(f"{served.url}/echo-asgi", content=b"body")
    assert by_messages.content == b"body" and set(by_messages.headers) == set(drawn.headers)

    written: list[bytes] = []
    monkeypatch.setattr(
        server_process,
        "send_whole",
        lambda _, head, body: written.append(head + b"|" + body) or True,
    )

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"body"}

    asyncio.run(
        server_process.Fronted(MemoryInstanceStore(), raise_unexpected)(
            {"type": "http", "path": "/echo"}, receive, raise_unexpected
        )
    )
    assert len(written) == 1 and written[0].endswith(b"content-length: 4\r\n|body")


async def raise_unexpected(*_: object) -> None:
    raise AssertionError("an echo is answered with one write only")


def test_page_has_a_row_for_each_case() -> None:
    turn = Turn(
        Load(100, 2000.0, 1.0, 2.0, 0.25),
        1e-4,
        Load(50, 600.0, 3.0, 4.0, 0.125),
        4e-4,
        Load(99, 1600.0, 1.0, 2.0, 0.25),
    )

    def measures() -> Iterator[Measure]:
        for case in (Case(387, "memory", 1), Case(387, "sqlite", 2, "token")):
            yield from server._figures(case, [turn])
            for when in ("before", "after"):
                yield Measure("server", f"{case.name}_memory_{when}", 60.0, "MB", "lower")
        yield Measure("server", "anonml_submissions", 1234.0, "1/s", "higher")

    page = list(server_page.lines(measures(), 5, 1.5))
    assert "| `ddml_pairs_387_vs_echo` | 0.60 | 0.50 | 0.6 | met | 0.75 |" in page
    assert (
        "| 387, memory, 1, open | 600 | 2,000 | 0.6 | 0.5 | 400 | 100 | 3 | 4 | 60 | 60 | 0.24 | "
        "0.125 |" in page
    )
    assert (
        "| 387, sqlite, 2, token | 600 | 2,000 | 0.6 | 0.5 | 400 | 100 | 3 | 4 | 60 | 60 | 0.24 | "
        "0.125 |" in page
    )
    assert "| anonml submissions | 1,234 | 1/s |  |" in page
    assert any(
        "at least 1.9 times the processor time of the loader" in line
        and "in none of these runs" in line
        for line in page
    )


def test_page_names_a_loader_at_its_limit() -> None:
    turn = Turn(Load(100, 2000.0, 1.0, 2.0, 1.0), 1e-4, Load(50, 600.0, 3.0, 4.0, 0.95), 4e-4)
    found = {one.measure: one for one in server._figures(Case(387, "redis", 2), [turn])}
    assert server_page._bottleneck(["ddml_387_redis_2_open"], found).endswith(
        "at its limit in 387, redis, 2, open."
    )


def test_page_of_one_part_contains_only_that_part() -> None:
    page = "\n".join(server_page.lines([Measure("server", "sdq_round", 1.0, "s", "lower")], 5, 1.5))
    assert "| sdq round | 1 | s |  |" in page and "DDML: pairs" not in page


def test_load_handles_bodies_larger_than_buffers(served: Coordinator) -> None:
    n_bytes = 3_000_000
    assert load(served.port, echoes([bytes(n_bytes)]), 0.1, n_bytes, n_connections=3).n >= 3


def test_load_counts_only_noted_requests(served: Coordinator) -> None:
    def talk(tally: Tally) -> Talk:
        status, body = yield (head("/v1/studies/0/draw", 0),)
        assert (status, bytes(body[:1])) == (404, b"{")
        tally.note(0.0)

    assert load(served.port, talk, 0.1, 4096, n_connections=2).n == 2


def test_cases_cover_all_stores_and_numbers_of_workers() -> None:
    assert {
        (case.p, case.models, case.workers) for case in server.CASES if case.admission == "open"
    } == {
        (p, models, workers)
        for p in (387, 50_000)
        for models, workers in (("memory", 1), *product(("sqlite", "redis"), (1, 2)))
    }
    assert dict(server.SIZES.values()) == {"387": 0.6, "50k": 0.8}


def test_server_benchmark_is_registered() -> None:
    assert command.BENCHMARKS["server"][0] == "benchmarks.speed.server"
