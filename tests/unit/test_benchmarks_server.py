"""The benchmark of a coordinator, for a moment: pairs are merged and counted, and measured against the echo of the same process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import __main__ as command
from benchmarks.measure import Measure
from benchmarks.speed import server
from benchmarks.speed.server_load import Load, Talk, Tally, echoes, head, load
from benchmarks.speed.server_runs import Coordinator, coordinator, ddml_text, honest_weights


@pytest.fixture(scope="module")
def served() -> Iterator[Coordinator]:
    with coordinator(ddml_text(9, "open"), models="memory") as served:
        yield served


def test_pairs_are_all_merged_and_held_against_echoes(served: Coordinator) -> None:
    turn, n = server._turn(served, 9, honest_weights(ddml_text(9, "open")), 0.3)
    assert served.n_merged() == n == turn.pairs.n >= 16
    assert turn.ratio == 2 * turn.pairs.rate / turn.echo.rate
    assert 0 < turn.pairs.p50 <= turn.pairs.p99 and served.megabytes() > 10
    found = {one.measure: one for one in server._figures("ddml_9_memory_1_open", [turn], 0.6)}
    assert found["ddml_pairs_9_vs_echo"].target == 0.6 and found["ddml_9_memory_1_open_pairs"].value == turn.pairs.rate


def test_the_table_has_a_row_for_each_case(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = server.Turn(Load(100, 2000.0, 1.0, 2.0), 1e-4, Load(50, 600.0, 3.0, 4.0), 4e-4)

    def measures(seeds: int, only: str) -> Iterator[Measure]:
        yield from server._figures("ddml_9_memory_1_open", [turn], 0.6)
        for when in ("before", "after"):
            yield Measure("server", f"ddml_9_memory_1_open_memory_{when}", 60.0, "MB", "lower")

    monkeypatch.setattr(server, "measures", measures)
    lines = list(server.markdown())
    assert lines[2] == "| 9, memory, 1, open | 600 | 2,000 | 400 | 0.5 | 3 | 4 | 60 | 60 |"
    assert lines[-1] == "| ddml pairs 9 vs echo | 0.6 | x | at least 0.6 |"


def test_bodies_larger_than_any_buffer_come_back(served: Coordinator) -> None:
    n_bytes = 3_000_000
    assert load(served.port, echoes("/echo", n_bytes), 0.1, n_bytes, n_connections=3).n >= 3


def test_what_is_refused_is_not_counted(served: Coordinator) -> None:
    def talk(tally: Tally) -> Talk:
        status, body = yield (head("/v1/studies/0/draw", 0),)
        assert (status, bytes(body[:1])) == (404, b"{")
        tally.note(0.0)

    assert load(served.port, talk, 0.1, 4096, n_connections=2).n == 2


def test_it_can_be_run_by_its_name() -> None:
    assert command.BENCHMARKS["server"][0] == "benchmarks.speed.server"
