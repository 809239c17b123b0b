"""`pick_study`: a study by the start of its digest or by its title."""

from __future__ import annotations

import pytest

from shoal.cli.arguments import MAX_LISTED, pick_study
from shoal.errors import UsageError

WIND, RAIN, RAIN_AGAIN = "7f3a91c2" + "0" * 56, "7f00" + "1" * 60, "00aa" + "2" * 60
STUDIES = {WIND: "Wind", RAIN: "Rain", RAIN_AGAIN: "Rain"}


@pytest.mark.parametrize(
    ("name", "digest"),
    [("7f3", WIND), ("7F3A-91", WIND), (WIND, WIND), ("Wind", WIND), ("0", RAIN_AGAIN)],
)
def test_pick_study_matches_start_of_digest_or_title(name: str, digest: str) -> None:
    assert pick_study(name, STUDIES, "There are") == digest


@pytest.mark.parametrize("name", ["7f", "Rain", "7"])
def test_pick_study_lists_only_matching_studies_if_ambiguous(name: str) -> None:
    with pytest.raises(
        UsageError, match=f'USAGE-001  More than one study matches "{name}"'
    ) as refused:
        pick_study(name, STUDIES, "There are")
    assert refused.value.why is not None and refused.value.fix is not None
    meant = (RAIN, RAIN_AGAIN) if name == "Rain" else (WIND, RAIN)
    assert [digest for digest in STUDIES if digest[:12] in refused.value.why] == list(meant)
    assert meant[0][:12] in refused.value.fix


@pytest.mark.parametrize("name", ["", "-", "wind", "7f3a91c3", "Wind ", WIND + "0"])
def test_pick_study_lists_all_studies_if_none_matches(name: str) -> None:
    with pytest.raises(UsageError, match="USAGE-001  There is no study") as refused:
        pick_study(name, STUDIES, "There are")
    assert refused.value.why is not None and all(
        digest[:12] in refused.value.why for digest in STUDIES
    )


def test_pick_study_says_if_there_is_no_study() -> None:
    with pytest.raises(UsageError) as refused:
        pick_study("7f", {}, "At http://127.0.0.1:1")
    assert (refused.value.why, refused.value.fix) == ("At http://127.0.0.1:1: no study.", None)


def test_pick_study_escapes_titles_and_cuts_long_lists() -> None:
    studies = {f"{i:064x}": "\x1b[2J" + "x" * 500 for i in range(1, 3 * MAX_LISTED)}
    with pytest.raises(UsageError) as refused:
        pick_study("f" * 64, studies, "There are")
    message = str(refused.value)
    assert "\x1b" not in message and len(message) < 200 * MAX_LISTED
