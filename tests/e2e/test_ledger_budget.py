"""One budget for each person, as real processes: what a default ledger accepts and refuses.

Everything about the same data counts towards one limit, for all protocols; a study with a delta
counts as much as its label states.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from shoal.clock import SystemClock
from shoal.participant.ledger_file import LedgerFile
from shoal.privacy.rounding import delta_grains_up, from_grains, grains_up
from tests.support.participants import folder, make_document
from tests.support.servers import (
    Coordinator,
    Participant,
    format_toml,
    wait_for_results,
    write_csv,
    write_roster,
)

__all__ = ["folder"]

ALONE = {"participation": {"minimum": 1, "size": 1}, "privacy": {"epsilon": 4.0}}
DEVICES = {"n_instances": 1, "admission": "signed"}


def test_same_row_in_two_protocols_is_refused_at_second(stack: ExitStack, folder: Path) -> None:
    """Attack: epsilon 4 through AnonML and 4 more through DDML, whose label said "used 0"."""
    someone = Participant(folder, "someone")
    write_csv(someone.data, 1)
    (folder / "row.toml").write_text(format_toml(make_document("anonml", **ALONE)))
    (folder / "device.toml").write_text(format_toml(make_document("ddml", ddml=DEVICES, **ALONE)))
    words = ("row.toml", "device.toml", "--port", "0", "--tickets")
    coordinator = stack.enter_context(Coordinator(folder, *words))
    first, second = coordinator.studies
    [joined] = wait_for_results(stack, [someone.join(coordinator, "--study", first)])
    assert joined["standing"] == "finished"

    shown = someone.start("join", coordinator.url, "--data", someone.data, "--study", second)
    stack.callback(shown.kill)
    assert shown.wait() > 0 and shown.read_result()["error"]["code"] == "BUDGET-002"
    refused = someone.join(coordinator, "--study", second)
    stack.callback(refused.kill)
    assert refused.wait() > 0
    error = refused.read_result()["error"]
    assert error["code"] == "BUDGET-002"
    assert (
        "asks for epsilon 4.0 (update, replace); 0 of your yearly limit of 4.0 is left"
        in (error["what"])
    )
    assert someone.entries(second) == (), "nothing was drawn"
    assert someone.spent() == grains_up(4.0)


def test_label_shows_what_other_protocols_used(stack: ExitStack, folder: Path) -> None:
    someone = Participant(folder, "someone")
    write_csv(someone.data, 1)
    small = {**ALONE, "privacy": {"epsilon": 1.5}}
    (folder / "row.toml").write_text(format_toml(make_document("anonml", **small)))
    (folder / "device.toml").write_text(format_toml(make_document("ddml", ddml=DEVICES, **small)))
    words = ("row.toml", "device.toml", "--port", "0", "--tickets")
    coordinator = stack.enter_context(Coordinator(folder, *words))
    for study, used in zip(coordinator.studies, (0.0, 1.5), strict=True):
        [joined] = wait_for_results(stack, [someone.join(coordinator, "--study", study)])
        budget = joined["label"]["budget"]
        assert (budget["limit"], budget["used"], budget["after"]) == (4.0, used, used + 1.5)


def test_study_with_delta_is_charged_as_label_states(stack: ExitStack, folder: Path) -> None:
    """A default ledger refused this study: the plain sum of its questions was epsilon 3.07."""
    people = [Participant(folder, f"site-{i}") for i in range(3)]
    for i, one in enumerate(people):
        write_csv(one.data, 40, seed=i)
    document = make_document(
        "pfds",
        trust="secure-sum",
        privacy={"epsilon": 1.0, "delta": 1e-6},
        pfds={"n_holders": 3},
        participation={"minimum": 3, "size": 20_000},
    )
    (folder / "sums.toml").write_text(format_toml(document))
    roster = write_roster(stack, people)
    coordinator = stack.enter_context(
        Coordinator(folder, "sums.toml", "--port", "0", "--roster", roster)
    )
    joined = wait_for_results(stack, [one.join(coordinator, max_epsilon=2.0) for one in people])
    for one, result in zip(people, joined, strict=True):
        assert result["standing"] == "finished", result
        label = result["label"]
        assert 0.999 < label["epsilon"] <= 1.0 and label["delta"] == 1e-6
        assert label["plain_sum"] > 2.0, "many questions"
        with LedgerFile(one.ledger, SystemClock()) as ledger:
            [total], [usage] = ledger.totals(), ledger.limits()
        assert total.spent == grains_up(label["epsilon"]) and total.held == 0
        assert total.spent_delta == delta_grains_up(1e-6)
        assert usage.spent == 2 * total.spent, "add-remove counts twice under replace"
        assert result["sent"]["epsilon"] == float(from_grains(total.spent))
