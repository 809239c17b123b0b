from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shoal.crypto.identity import SIGNATURE_BYTES
from shoal.crypto.secagg.context import DIGEST_BYTES
from shoal.crypto.secagg.key_shares import BOX_BYTES, REVEALED_BYTES
from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.base import Array, Registry
from shoal.messages.codec import MAX_BYTES, decode, encode
from shoal.protocols.secagg.messages import (
    SUM_MESSAGES,
    SumAgreed,
    SumAgreement,
    SumBoxes,
    SumKeyList,
    SumMasked,
    SumShares,
    SumSurvivors,
    SumUnmask,
    split_row,
)

N = 1000
EVERYONE = tuple(range(N))
SIGNED: dict[str, Any] = {"study": bytes(32), "round": 1 << 40, "signature": bytes(64)}
LISTED: dict[str, Any] = {"study": bytes(32), "round": 1 << 40}

LARGE = [
    SumKeyList(**LISTED, members=EVERYONE, entries=bytes(96 * N)),
    SumShares(
        **SIGNED,
        boxes=bytes(BOX_BYTES * N),
        commitments=bytes(DIGEST_BYTES * N),
        signatures=bytes(SIGNATURE_BYTES * N),
    ),
    SumBoxes(
        **LISTED,
        dealers=EVERYONE,
        boxes=bytes(BOX_BYTES * N),
        commitments=bytes(DIGEST_BYTES * N),
        signatures=bytes(64 * N),
    ),
    SumMasked(**SIGNED, vector=Array.from_values(np.full(1_000_000, 2**64 - 1, np.uint64))),
    SumSurvivors(**LISTED, survivors=EVERYONE),
    SumAgreement(
        **LISTED, survivors=EVERYONE, signers=EVERYONE, signatures=bytes(SIGNATURE_BYTES * N)
    ),
    SumUnmask(**SIGNED, shares=bytes(REVEALED_BYTES * N)),
]


@pytest.mark.parametrize("message", LARGE, ids=lambda message: message.type_name)
def test_messages_of_thousand_members_and_million_counts_fit(message: Any) -> None:
    data = encode(message)
    assert decode(data, Registry(*SUM_MESSAGES), bytes(32)) == message
    assert len(data) <= message.max_bytes <= MAX_BYTES


@pytest.mark.parametrize("members", [(1, 0), (0, 0), (0, 1, 1), (-1,), (True,)])
def test_members_must_increase(members: Any) -> None:
    with pytest.raises(LocalProtocolError, match="MSG-007"):
        SumSurvivors(**LISTED, survivors=members)


def test_member_message_has_one_submission_per_round_and_only_masked_spends() -> None:
    first, second = (SumAgreed(**{**SIGNED, "round": number}).submission for number in (1, 2))
    assert first is not None and first != second
    assert [kind for kind in SUM_MESSAGES if kind.spends] == [SumMasked]
    assert len({kind.type_name for kind in SUM_MESSAGES}) == len(SUM_MESSAGES)


@pytest.mark.parametrize("row", [b"", b"a", b"aab", b"aabbc", b"aabbcc"])
def test_split_row_rejects_wrong_length(row: bytes) -> None:
    assert split_row(b"aabb", 2, (3, 7), "keys") == {3: b"aa", 7: b"bb"}
    with pytest.raises(RemoteProtocolError, match=r"MSG-005.*keys of 2 members"):
        split_row(row, 2, (3, 7), "keys")
