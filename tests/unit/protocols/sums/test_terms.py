from __future__ import annotations

import pytest

from shoal.crypto.context import Keys
from shoal.errors import RemoteProtocolError, SpecError
from shoal.protocols.sums.messages import SumKeyList
from shoal.protocols.sums.terms import Terms, keys_statement, masked_statement, read_keys, shares_statement, unmask_statement
from toy.sums import SumStudy


@pytest.mark.parametrize("n", [3, 4, 5, 10])
def test_more_than_half_are_needed_and_at_most_all(n: int) -> None:
    roster = SumStudy(n_members=n, threshold=n).terms.roster
    for threshold in range(-1, n + 3):
        if n < 2 * threshold <= 2 * n:
            assert Terms(bytes(32), roster, threshold).threshold == threshold
        else:
            with pytest.raises(SpecError, match="SUM-001"):
                Terms(bytes(32), roster, threshold)


def test_a_context_says_study_roster_round_and_query() -> None:
    terms, other = SumStudy(n_members=5).terms, SumStudy(n_members=4, threshold=3).terms
    contexts = {
        terms.context(1, bytes(32)),
        terms.context(2, bytes(32)),
        terms.context(1, bytes(31) + b"1"),
        other.context(1, bytes(32)),
        Terms(bytes(32), terms.roster, 4).context(1, bytes(32)),
    }
    assert len({context.bind("purpose") for context in contexts}) == 5


def test_a_list_of_keys_is_read_as_it_was_written() -> None:
    keys = {2: Keys(b"a" * 32, b"b" * 32, b"c" * 32), 4: Keys(b"d" * 32, b"e" * 32, b"f" * 32)}
    entries = b"".join(part for one in keys.values() for part in one)
    listed = SumKeyList(study=bytes(32), round=1, members=(2, 4), entries=entries)
    assert read_keys(listed) == keys
    with pytest.raises(RemoteProtocolError, match="MSG-005"):
        read_keys(listed.replace(entries=entries + b"0"))


def test_no_two_statements_are_the_same() -> None:
    context, digest = SumStudy().terms.context(1, bytes(32)), bytes(32)
    keys = Keys(b"a" * 32, b"b" * 32, b"c" * 32)
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
