"""How often one run of a participant builds the script and encodes the rows."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shoal.clock import SystemClock
from shoal.data.schema import Schema
from shoal.entropy import SeededEntropy, SystemEntropy
from shoal.participant.session import open_session
from shoal.study import anonml
from tests.support.credentials import Holder, TokenDesk, play, token_manifest, tokens
from tests.support.participants import folder, make_manifest, make_table
from tests.support.servers import live

__all__ = ["folder", "tokens"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the scripts that participants build and the tables that they encode, by function.

    The coordinator of a test runs in the same process: the scripts that it builds do not count.
    """
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            if name != "make_script" or _is_called_by_participant():
                counts[name] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(owner, name, counted)

    count(anonml, "make_script")
    count(Schema, "fit")
    return counts


def _is_called_by_participant() -> bool:
    """Return whether the innermost caller outside `shoal.study` and below is a participant."""
    files = (frame.filename for frame in inspect.stack(0)[1:] if frame.filename != __file__)
    lower = ("/shoal/study/", "/shoal/protocols/", "/functools.py")
    caller = next(file for file in files if not any(part in file for part in lower))
    return "/shoal/participant/" in caller


def test_join_with_ticket_makes_script_at_most_twice_and_encodes_rows_once(
    folder: Path, calls: Counter[str]
) -> None:
    async def join(url: str) -> None:
        async with open_session(folder / "me.db", url, SystemClock(), SystemEntropy()) as session:
            offer = await session.fetch_offer(None)
            rows = offer.study.encode_rows(make_table(1))
            priced = session.price_offer(offer, "rows.csv")
            session.refuse_if_over_limits(priced, None)
            session.draw_example(offer, rows)
            session.agree(offer, "rows.csv")
            await session.take_part(offer, rows, lambda _: None)

    with live(folder, make_manifest("anonml", 4)) as coordinator:
        calls.clear()
        asyncio.run(join(coordinator.url))
    assert 1 <= calls["make_script"] <= 2
    assert calls["fit"] == 1


@pytest.mark.usefixtures("tokens")
def test_join_with_tokens_makes_script_at_most_twice_and_encodes_rows_once(
    folder: Path, calls: Counter[str]
) -> None:
    desk = TokenDesk(token_manifest(n=2))
    people = [
        Holder(folder / f"{i}.db", make_table(1, i), SeededEntropy(i), clock=desk.time)
        for i in range(2)
    ]
    calls.clear()
    ended = play(desk, people)
    assert [getattr(one, "status", one) for one in ended] == ["finished"] * 2
    assert 2 <= calls["make_script"] <= 4
    assert calls["fit"] == 2
