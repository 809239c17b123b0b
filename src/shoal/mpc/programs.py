"""What is computed jointly, on shares: each party opens its own result and nothing else.

Against parties that follow the protocol, of which fewer than half put together what they see (honest majority, semi-honest).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from shoal.protocols.joint.dealing import PRIME, SUM_BITS

Program = Callable[[Any, tuple[int, ...]], Coroutine[Any, Any, int]]


def _numbers(mpc: Any) -> Any:
    """Secure integers in the field of the dealers; two bits more than a sum, for the sign and for the difference of two."""
    return mpc.SecInt(SUM_BITS + 2, p=PRIME)


async def argmax(mpc: Any, shares: tuple[int, ...]) -> int:
    """The position of the largest sum, the first of several: a tournament, in which the later one must be larger to win."""
    number = _numbers(mpc)
    position, _ = mpc.argmax([number(number.field(share)) for share in shares])
    return int(await mpc.output(position))


async def select(mpc: Any, _: tuple[int, ...]) -> int:
    """Whether this party is selected to add (1), to subtract (2), or not (0): two different ones, uniform among all ordered pairs.

    One secret unit vector has a place for every ordered pair; a party's flag is a sum of places, and is opened to that party alone.

    Notes
    -----
    Ref: SDQ Algorithm 1; errata S-01, S-06, S-07.
    """
    n = len(mpc.parties)
    number = _numbers(mpc)
    pairs = [(adds, subtracts) for adds in range(n) for subtracts in range(n) if adds != subtracts]
    places = mpc.random.random_unit_vector(number, len(pairs))
    flags = []
    for party in range(n):
        adds = mpc.sum([place for place, pair in zip(places, pairs, strict=True) if pair[0] == party])
        subtracts = mpc.sum([place for place, pair in zip(places, pairs, strict=True) if pair[1] == party])
        flags.append(mpc.output(adds + 2 * subtracts, receivers=party))
    # All of them: a party is done when it has sent its shares of the others' flags too.
    return int([await flag for flag in flags][mpc.pid])


PROGRAMS: Mapping[str, Program] = {"argmax": argmax, "select": select}
