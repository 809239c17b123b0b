"""`shoal leave`: what is given up, what stays, and whether the coordinator knows."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from live import Live, live, write_csv
from participants import folder, manifest_of
from shoal.cli.join import join
from shoal.cli.leave import leave
from shoal.clock import SystemClock
from shoal.entropy import SystemEntropy
from shoal.errors import StoreError, UsageError
from shoal.participant.journal import Journal
from shoal.participant.session import opened

__all__ = ["folder"]

DDML = manifest_of("ddml", 3, ddml={"n_instances": 2, "admission": "signed"}, privacy={"epsilon": 4.0, "n_updates": 2})
PFDS = manifest_of("pfds", 3, pfds={"n_holders": 3})


def take_up(path: Path, coordinator: Live) -> None:
    async def agree() -> None:
        async with opened(path, coordinator.url, SystemClock(), SystemEntropy()) as session:
            session.agree(await session.offer(PFDS.short), "rows.csv")

    asyncio.run(agree())


def test_what_was_sent_stays_sent_and_the_coordinator_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live(folder, DDML) as coordinator:
        data = str(write_csv(folder / "rows.csv", 5))
        join(coordinator.url, ledger=folder / "me.db", data=data, yes=True, max_epsilon="4", json=True)
        capsys.readouterr()
        assert coordinator.totals(DDML).enrolled == 1
        leave(DDML.short, ledger=folder / "me.db")
        printed = capsys.readouterr().out
        assert coordinator.totals(DDML).enrolled == 0
    assert "voided    0 answers not sent, epsilon 0, which is free again" in printed
    assert "stays     2 answers, " in printed and "epsilon 4.0: what was sent stays sent, and stays spent" in printed
    assert f"told      the coordinator at {coordinator.url}" in printed and printed.endswith("next      shoal ledger show\n")
    with Journal(folder / "me.db", SystemClock()) as journal:
        assert journal.studies()[0].standing == "left"


def test_a_coordinator_that_is_gone_is_told_later(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live(folder, DDML) as coordinator:
        join(coordinator.url, ledger=folder / "me.db", data=str(write_csv(folder / "rows.csv", 5)), yes=True, max_epsilon="4", json=True)
    capsys.readouterr()
    leave("Wind, by ddml", ledger=folder / "me.db")
    printed = capsys.readouterr().out
    assert f"told      not the coordinator at {coordinator.url}: " in printed
    assert printed.endswith(f"next      shoal leave {DDML.digest.hex()[:12]}\n")
    leave(DDML.digest.hex(), ledger=folder / "me.db", json=True)
    assert json.loads(capsys.readouterr().out)["coordinator"]["error"]["code"] == "NET-001"


def test_a_coordinator_that_never_knew_is_not_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with live(folder, PFDS) as coordinator:
        take_up(folder / "me.db", coordinator)
        leave(PFDS.short, ledger=folder / "me.db")
    assert "told      nobody: the coordinator does not know of you" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["", "ffff", "Another study"])
def test_a_study_that_is_not_there_is_a_sentence_with_those_that_are(name: str, folder: Path) -> None:
    with live(folder, PFDS) as coordinator:
        take_up(folder / "me.db", coordinator)
    with pytest.raises(UsageError, match="You are in no study") as refused:
        leave(name, ledger=folder / "me.db")
    assert "Wind, by pfds" in refused.value.what


def test_nobody_leaves_while_another_process_takes_part(folder: Path) -> None:
    with live(folder, PFDS) as coordinator:
        take_up(folder / "me.db", coordinator)
    with Journal(folder / "me.db", SystemClock()) as journal, journal.hold(PFDS.digest.hex()), pytest.raises(StoreError):
        leave(PFDS.short, ledger=folder / "me.db")
