"""The cost benchmark of secure sums with few members and short vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.measure import Measure
from benchmarks.speed import sdq
from benchmarks.speed.sdq import rounds as sdq_rounds
from benchmarks.speed.sdq.rounds import Meter, Parties, Round, least, lone_member
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.errors import RemoteProtocolError
from shoal.protocols.secagg.messages import SumMasked

SIZE = 20


def return_half_second_rate(work: Callable[[], object], amount: int, **_: float) -> float:
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
    monkeypatch.setattr(sdq, "rate", return_half_second_rate)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Return the arguments of other programs; each reports fixed times."""
    found: list[tuple[str, ...]] = []

    def run_script(python: Path, script: Path, *arguments: str) -> dict[str, float]:
        assert script.is_file()
        found.append((str(python), script.name, *arguments))
        return {"integers": 2.0, "field": 1.0} if "mpyc" in script.name else {"numbers": 1e6}

    monkeypatch.setattr(
        sdq, "make_environment", lambda name, *requirements: f"{name}: {' '.join(requirements)}"
    )
    monkeypatch.setattr(sdq, "run_script", run_script)
    return found


def index_measures(measures: Iterator[Measure]) -> dict[str, Measure]:
    found = list(measures)
    assert len({one.measure for one in found}) == len(found) and {one.bench for one in found} == {
        "sdq-speed"
    }
    return {one.measure: one for one in found}


@pytest.mark.parametrize("n", [2, 3, 10, 100, 1_000])
def test_threshold_is_the_smallest_for_the_colluders(
    n: int,
) -> None:
    assert 2 * least(n) > n + sdq_rounds.colluders(n) >= 2 * (least(n) - 1)


@pytest.mark.parametrize("n_gone", [0, 1])
def test_round_gives_the_sum_of_remaining_members(n_gone: int) -> None:
    played = Round(Parties(4, 3), SystemEntropy(), n_gone)
    total = played.play()
    assert total.shape == (SIZE,) and 0 < total.max() < 4 * 1_000
    assert len(played.staying) == 4 - n_gone
    assert all(one.ns > 0 and one.noise_ns > 0 for one in played.staying)
    assert all(played.meters[i].noise_ns == 0 for i in range(4 - n_gone, 4)), (
        "a member that dropped out masks nothing"
    )
    assert (
        sum(one.sent for one in played.meters.values())
        >= played.collector_meter.received
        > 4 * 8 * SIZE
    )


def test_round_with_a_wrong_sum_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    masked = sdq_rounds.SumMember.mask_values

    def off_by_one(self: Any, sitting: Any, values: Any) -> SumMasked:
        return masked(self, sitting, values + (self.me == 1))

    monkeypatch.setattr(sdq_rounds.SumMember, "mask_values", off_by_one)
    with pytest.raises(RuntimeError, match="not given the sum"):
        Round(Parties(4, 3), SystemEntropy()).play()


@pytest.mark.parametrize("n_gone", [0, 1])
def test_lone_member_has_the_traffic_of_a_whole_round(n_gone: int) -> None:
    parties = Parties(4, 3)
    played = Round(parties, SystemEntropy(), n_gone)
    played.play()
    lone, there = lone_member(parties, SystemEntropy(), n_gone), played.meters[0]
    assert (lone.sent, lone.received) == (there.sent, there.received)
    assert lone.ns > 0 and lone.noise_ns > 0


def test_lone_member_checks_the_simulated_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdq_rounds, "encode_survivors_statement", lambda *given: b"another")
    with pytest.raises(RemoteProtocolError, match="CRYPTO-001"):
        lone_member(Parties(4, 3), SystemEntropy())


def test_lone_member_that_does_not_finish_raises_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received = sdq_rounds.SumMember.handle_message
    monkeypatch.setattr(
        sdq_rounds.SumMember,
        "handle_message",
        lambda self, sitting, *given: (
            (sitting, ()) if sitting.survivors else received(self, sitting, *given)
        ),
    )
    with pytest.raises(RuntimeError, match="not come to the end"):
        lone_member(Parties(4, 3), SystemEntropy())


def test_meter_counts_time_and_no_bytes() -> None:
    meter = Meter()
    assert meter.timed(lambda n: sum(range(n)), 20_000) == 199_990_000
    assert meter.ns > 0 and (meter.sent, meter.received, meter.noise_ns) == (0, 0, 0)


def test_round_measures_have_all_cases_and_targets() -> None:
    found = index_measures(sdq.measures("rounds"))
    for case in ("all_needed", "all_stay", "most_gone"):
        assert found[f"member_4_{case}"].target == 8.0
        assert found[f"member_4_{case}"].value <= found[f"member_4_{case}_typical"].value
        assert found[f"both_4_{case}"].value > found[f"noise_4_{case}"].value > 0
        assert found[f"collector_4_{case}"].value > 0 and found[f"received_4_{case}"].unit == "kB"
    assert found["sent_4_all_stay"].value == found["sent_4_most_gone"].value, (
        "a remaining member sends the same"
    )
    # Half a second for each call: 4 + 5 + 3 + 3 + .3 + 3 + 2 + 4, and one signature check for
    # each needed member.
    assert found["library_4_all_needed"].value == pytest.approx(
        500 * (9 + 3 + 4 + 3 + 0.3 + 3 + 2 + 4)
    )
    assert found["library_4_all_needed"].value - found["library_4_all_stay"].value == pytest.approx(
        500 * (4 - least(4))
    )


def test_lone_member_of_many_sends_as_in_a_whole_round() -> None:
    crowd, whole = index_measures(sdq.measures("crowd")), index_measures(sdq.measures("whole"))
    assert crowd["sent_5_all_stay"].value == whole["sent_5_whole"].value
    assert "collector_5_whole" in whole and "collector_5_all_stay" not in crowd
    assert all(one.target is None for one in (*crowd.values(), *whole.values()))


def test_mpyc_runs_ten_parties_and_its_best_time_counts(
    asked: list[tuple[str, ...]],
) -> None:
    found = index_measures(sdq.measures("mpyc"))
    assert asked == [("mpyc: mpyc gmpy2 numpy uvloop", "mpyc_sum.py", "-M10", "--no-log")]
    assert found["mpyc_10"].value == 1_000.0
    assert found["sum_alone_10"].value == 500.0 and found["sum_alone_10"].ratio == 0.5
    assert (
        found["sum_alone_10_less_than_mpyc"].value == 2.0
        and found["sum_alone_10_less_than_mpyc"].target == 20
    )
    assert found["everything_10_less_than_mpyc"].target is None


def test_masks_are_compared_with_flower(asked: list[tuple[str, ...]]) -> None:
    found = index_measures(sdq.measures("flower"))
    assert asked == [("flower: flwr", "flower_masks.py")]
    assert found["mask_numbers"].ratio == pytest.approx(2 * SIZE / 1e6)


def test_sum_alone_masks_a_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[Any] = []
    made = sdq.mask_vector
    monkeypatch.setattr(sdq, "mask_vector", lambda *given: masks.append(made(*given)) or masks[-1])
    assert sdq.sum_alone_ms(3) == 500.0
    assert masks[0].shape == (SIZE,) and masks[0].dtype == np.uint64


def test_default_measures_omit_the_whole_round(
    asked: list[tuple[str, ...]],
) -> None:
    found = index_measures(sdq.measures())
    assert {"member_4_all_stay", "member_5_all_stay", "mpyc_10", "mask_numbers"} <= set(found)
    assert not any("whole" in name for name in found) and len(asked) == 2


def test_markdown_has_a_row_for_each_case_and_measure(
    asked: list[tuple[str, ...]],
) -> None:
    lines = list(sdq.markdown())
    cut = lines.index("")
    rounds, others = [line.split(" | ") for line in lines[2:cut]], lines[cut + 3 :]
    assert [row[0].strip("| ") for row in rounds] == [
        f"{n} {case}" for n in (4, 5) for case in ("all needed", "all stay", "most gone")
    ]
    assert all(len(row) == 9 for row in rounds) and all(rounds[0]) and rounds[3][6] == "", (
        "a lone member has no collector"
    )
    assert others[0] == "| mpyc 10 | 1,000 | ms |  |" and len(others) == 7
    assert len(list(sdq.markdown("flower"))) == 5


def test_round_is_repeatable_with_a_seed() -> None:
    one, other = (Round(Parties(3, 2), SeededEntropy(7)).play() for _ in range(2))
    assert np.array_equal(one, other)
