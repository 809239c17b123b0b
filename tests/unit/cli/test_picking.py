"""Which study a word of the command line means."""

from __future__ import annotations

import pytest

from shoal.cli.picking import MOST_LISTED, pick
from shoal.errors import UsageError

WIND, RAIN, RAIN_AGAIN = "7f3a91c2" + "0" * 56, "7f00" + "1" * 60, "00aa" + "2" * 60
STUDIES = {WIND: "Wind", RAIN: "Rain", RAIN_AGAIN: "Rain"}


@pytest.mark.parametrize(("name", "digest"), [("7f3", WIND), ("7F3A-91", WIND), (WIND, WIND), ("Wind", WIND), ("0", RAIN_AGAIN)])
def test_the_beginning_of_a_digest_or_a_title(name: str, digest: str) -> None:
    assert pick(name, STUDIES, "There are") == digest


@pytest.mark.parametrize("name", ["7f", "Rain", "7"])
def test_of_several_only_those_that_could_be_meant_are_named(name: str) -> None:
    with pytest.raises(UsageError, match=f'USAGE-001  More than one study is meant by "{name}"') as refused:
        pick(name, STUDIES, "There are")
    assert refused.value.why is not None and refused.value.fix is not None
    meant = (RAIN, RAIN_AGAIN) if name == "Rain" else (WIND, RAIN)
    assert [digest for digest in STUDIES if digest[:12] in refused.value.why] == list(meant)
    assert meant[0][:12] in refused.value.fix


@pytest.mark.parametrize("name", ["", "-", "wind", "7f3a91c3", "Wind ", WIND + "0"])
def test_none(name: str) -> None:
    with pytest.raises(UsageError, match="USAGE-001  There is no study") as refused:
        pick(name, STUDIES, "There are")
    assert refused.value.why is not None and all(digest[:12] in refused.value.why for digest in STUDIES)


def test_none_at_all() -> None:
    with pytest.raises(UsageError) as refused:
        pick("7f", {}, "At http://127.0.0.1:1")
    assert (refused.value.why, refused.value.fix) == ("At http://127.0.0.1:1: no study.", None)


def test_a_title_of_a_stranger_moves_no_cursor_and_a_long_list_is_cut() -> None:
    studies = {f"{i:064x}": "\x1b[2J" + "x" * 500 for i in range(1, 3 * MOST_LISTED)}
    with pytest.raises(UsageError) as refused:
        pick("f" * 64, studies, "There are")
    message = str(refused.value)
    assert "\x1b" not in message and len(message) < 200 * MOST_LISTED
