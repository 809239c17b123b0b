"""The cost benchmark of secure sums, with few members and short vectors: what is run, who pays for what, and against what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.measure import Measure
from benchmarks.speed import sdq, sdq_rounds
from benchmarks.speed.sdq_rounds import Meter, Parties, Round, least, lone_member
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import RemoteProtocolError
from shoal.protocols.sums.messages import SumMasked

SIZE = 20


def half_a_second(work: Callable[[], object], amount: int, **_: float) -> float:
    work()
    return amount / 0.5


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sdq, sdq_rounds):
        monkeypatch.setattr(module, "SIZE", SIZE)
    monkeypatch.setattr(sdq, "ROUNDS", {4: 2})
    monkeypatch.setattr(sdq, "TARGETS", {4: 8.0})
    for name, value in {"N_CROWD": 5, "N_LONE": 1, "N_AGAINST": 1}.items():
        monkeypatch.setattr(sdq, name, value)
    monkeypatch.setattr(sdq, "rate", half_a_second)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What other programs were started with; each sum of theirs takes a second, and a million numbers of a mask."""
    found: list[tuple[str, ...]] = []

    def ask(python: Path, script: Path, *arguments: str) -> dict[str, float]:
        assert script.is_file()
        found.append((str(python), script.name, *arguments))
        return {"integers": 2.0, "field": 1.0} if "mpyc" in script.name else {"numbers": 1e6}

    monkeypatch.setattr(sdq, "environment", lambda name, *requirements: f"{name}: {' '.join(requirements)}")
    monkeypatch.setattr(sdq, "ask", ask)
    return found


def named(measures: Iterator[Measure]) -> dict[str, Measure]:
    found = list(measures)
    assert len({one.measure for one in found}) == len(found) and {one.bench for one in found} == {"sdq-speed"}
    return {one.measure: one for one in found}


@pytest.mark.parametrize("n", [2, 3, 10, 100, 1_000])
def test_the_threshold_is_the_smallest_that_a_study_with_three_colluders_of_ten_may_have(n: int) -> None:
    assert 2 * least(n) > n + sdq_rounds.colluders(n) >= 2 * (least(n) - 1)


@pytest.mark.parametrize("n_gone", [0, 1])
def test_a_whole_round_gives_the_sum_of_those_that_stay(n_gone: int) -> None:
    played = Round(Parties(4, 3), SystemEntropy(), n_gone)
    total = played.play()
    assert total.shape == (SIZE,) and 0 < total.max() < 4 * 1_000
    assert len(played.staying) == 4 - n_gone
    assert all(one.ns > 0 and one.noise_ns > 0 for one in played.staying)
    assert all(played.meters[i].noise_ns == 0 for i in range(4 - n_gone, 4)), "who has vanished masks nothing"
    assert sum(one.sent for one in played.meters.values()) >= played.collector_meter.received > 4 * 8 * SIZE


def test_a_round_whose_sum_is_wrong_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    masked = sdq_rounds.Member.masked

    def off_by_one(self: Any, sitting: Any, values: Any) -> SumMasked:
        return masked(self, sitting, values + (self.me == 1))

    monkeypatch.setattr(sdq_rounds.Member, "masked", off_by_one)
    with pytest.raises(RuntimeError, match="not given the sum"):
        Round(Parties(4, 3), SystemEntropy()).play()


@pytest.mark.parametrize("n_gone", [0, 1])
def test_a_lone_member_sends_and_receives_what_it_would_in_a_whole_round(n_gone: int) -> None:
    parties = Parties(4, 3)
    played = Round(parties, SystemEntropy(), n_gone)
    played.play()
    lone, there = lone_member(parties, SystemEntropy(), n_gone), played.meters[0]
    assert (lone.sent, lone.received) == (there.sent, there.received)
    assert lone.ns > 0 and lone.noise_ns > 0


def test_a_lone_member_checks_all_that_is_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdq_rounds, "survivors_statement", lambda *given: b"another")
    with pytest.raises(RemoteProtocolError, match="CRYPTO-001"):
        lone_member(Parties(4, 3), SystemEntropy())


def test_a_member_that_does_not_come_to_the_end_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    received = sdq_rounds.Member.received
    monkeypatch.setattr(
        sdq_rounds.Member, "received", lambda self, sitting, *given: (sitting, ()) if sitting.survivors else received(self, sitting, *given)
    )
    with pytest.raises(RuntimeError, match="not come to the end"):
        lone_member(Parties(4, 3), SystemEntropy())


def test_a_meter_counts_bytes_and_time() -> None:
    meter = Meter()
    assert meter.timed(lambda n: sum(range(n)), 20_000) == 199_990_000
    assert meter.ns > 0 and (meter.sent, meter.received, meter.noise_ns) == (0, 0, 0)


def test_every_case_has_its_figures_and_targets() -> None:
    found = named(sdq.measures("rounds"))
    for case in ("all_needed", "all_stay", "most_gone"):
        assert found[f"member_4_{case}"].target == 8.0
        assert found[f"member_4_{case}"].value <= found[f"member_4_{case}_typical"].value
        assert found[f"both_4_{case}"].value > found[f"noise_4_{case}"].value > 0
        assert found[f"collector_4_{case}"].value > 0 and found[f"received_4_{case}"].unit == "kB"
    assert found["sent_4_all_stay"].value == found["sent_4_most_gone"].value, "who stays sends the same"
    # Half a second for each call: 4 + 5 + 3 + 3 + .3 + 3 + 2 + 4, and one signature to check for each that is needed.
    assert found["library_4_all_needed"].value == pytest.approx(500 * (9 + 3 + 4 + 3 + 0.3 + 3 + 2 + 4))
    assert found["library_4_all_needed"].value - found["library_4_all_stay"].value == pytest.approx(500 * (4 - least(4)))


def test_a_crowd_and_a_whole_round_of_it() -> None:
    crowd, whole = named(sdq.measures("crowd")), named(sdq.measures("whole"))
    assert crowd["sent_5_all_stay"].value == whole["sent_5_whole"].value
    assert "collector_5_whole" in whole and "collector_5_all_stay" not in crowd
    assert all(one.target is None for one in (*crowd.values(), *whole.values()))


def test_mpyc_is_started_with_ten_parties_and_its_best_is_taken(asked: list[tuple[str, ...]]) -> None:
    found = named(sdq.measures("mpyc"))
    assert asked == [("mpyc: mpyc gmpy2 numpy uvloop", "peer_mpyc.py", "-M10", "--no-log")]
    assert found["mpyc_10"].value == 1_000.0
    assert found["sum_alone_10"].value == 500.0 and found["sum_alone_10"].ratio == 0.5
    assert found["sum_alone_10_less_than_mpyc"].value == 2.0 and found["sum_alone_10_less_than_mpyc"].target == 20
    assert found["everything_10_less_than_mpyc"].target is None


def test_masks_are_held_against_flowers(asked: list[tuple[str, ...]]) -> None:
    found = named(sdq.measures("flower"))
    assert asked == [("flower: flwr", "peer_flower.py")]
    assert found["mask_numbers"].ratio == pytest.approx(2 * SIZE / 1e6)


def test_the_sum_alone_is_a_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[Any] = []
    made = sdq.mask
    monkeypatch.setattr(sdq, "mask", lambda *given: masks.append(made(*given)) or masks[-1])
    assert sdq.sum_alone_ms(3) == 500.0
    assert masks[0].shape == (SIZE,) and masks[0].dtype == np.uint64


def test_all_parts_but_the_whole_crowd_run_when_nothing_is_chosen(asked: list[tuple[str, ...]]) -> None:
    found = named(sdq.measures())
    assert {"member_4_all_stay", "member_5_all_stay", "mpyc_10", "mask_numbers"} <= set(found)
    assert not any("whole" in name for name in found) and len(asked) == 2


def test_a_table_has_a_row_for_each_case_and_for_every_other_figure(asked: list[tuple[str, ...]]) -> None:
    lines = list(sdq.markdown())
    cut = lines.index("")
    rounds, others = [line.split(" | ") for line in lines[2:cut]], lines[cut + 3 :]
    assert [row[0].strip("| ") for row in rounds] == [f"{n} {case}" for n in (4, 5) for case in ("all needed", "all stay", "most gone")]
    assert all(len(row) == 9 for row in rounds) and all(rounds[0]) and rounds[3][6] == "", "nobody collects from a crowd"
    assert others[0] == "| mpyc 10 | 1,000 | ms |  |" and len(others) == 7
    assert len(list(sdq.markdown("flower"))) == 5


def test_rounds_can_be_repeated() -> None:
    one, other = (Round(Parties(3, 2), SeededEntropy(7)).play() for _ in range(2))
    assert np.array_equal(one, other)
