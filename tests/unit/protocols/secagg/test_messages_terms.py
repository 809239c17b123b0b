from __future__ import annotations

import pytest

from shoal.crypto.secagg.context import MemberPublicKeys
from shoal.errors import RemoteProtocolError, SpecError
from shoal.protocols.secagg.messages import (
    SumKeyList,
    SumParameters,
    keys_statement,
    masked_statement,
    read_keys,
    shares_statement,
    unmask_statement,
)
from tests.support.toy.sums import SumStudy


@pytest.mark.parametrize("n", [3, 4, 5, 10])
def test_sum_parameters_require_threshold_above_half(n: int) -> None:
    roster = SumStudy(n_members=n, threshold=n).terms.roster
    for threshold in range(-1, n + 3):
        if n < 2 * threshold <= 2 * n:
            assert SumParameters(bytes(32), roster, threshold).threshold == threshold
        else:
            with pytest.raises(SpecError, match="SUM-001"):
                SumParameters(bytes(32), roster, threshold)


def test_context_binds_study_roster_round_and_query() -> None:
    terms, other = SumStudy(n_members=5).terms, SumStudy(n_members=4, threshold=3).terms
    contexts = {
        terms.make_context(1, bytes(32)),
        terms.make_context(2, bytes(32)),
        terms.make_context(1, bytes(31) + b"1"),
        other.make_context(1, bytes(32)),
        SumParameters(bytes(32), terms.roster, 4).make_context(1, bytes(32)),
    }
    assert len({context.bind("purpose") for context in contexts}) == 5


def test_read_keys_returns_written_keys() -> None:
    keys = {
        2: MemberPublicKeys(b"a" * 32, b"b" * 32, b"c" * 32),
        4: MemberPublicKeys(b"d" * 32, b"e" * 32, b"f" * 32),
    }
    entries = b"".join(part for one in keys.values() for part in one)
    listed = SumKeyList(study=bytes(32), round=1, members=(2, 4), entries=entries)
    assert read_keys(listed) == keys
    with pytest.raises(RemoteProtocolError, match="MSG-005"):
        read_keys(listed.replace(entries=entries + b"0"))


def test_statements_are_all_different() -> None:
    context, digest = SumStudy().terms.make_context(1, bytes(32)), bytes(32)
    keys = MemberPublicKeys(b"a" * 32, b"b" * 32, b"c" * 32)
    statements = [
        keys_statement(context, 0, keys),
        keys_statement(context, 1, keys),
        keys_statement(context, 0, keys._replace(box=keys.mask)),
        shares_statement(context, 0, digest, b"x", b"y", b""),
        shares_statement(context, 1, digest, b"x", b"y", b""),
        shares_statement(context, 0, b"d" * 32, b"x", b"y", b""),
        shares_statement(context, 0, digest, b"x", b"", b"y"),
        masked_statement(context, 0, digest, (0, 1), b"x"),
        masked_statement(context, 1, digest, (0, 1), b"x"),
        masked_statement(context, 0, b"d" * 32, (0, 1), b"x"),
        masked_statement(context, 0, digest, (0, 2), b"x"),
        masked_statement(context, 0, digest, (0, 1), b"y"),
        unmask_statement(context, 0, b"x"),
        unmask_statement(context, 1, b"x"),
        unmask_statement(context, 0, b"y"),
    ]
    assert len(set(statements)) == len(statements)
