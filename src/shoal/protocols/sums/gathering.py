"""What a collector of a secure sum remembers of the round that is open; it is saved, and holds nothing secret."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from shoal.crypto.context import DIGEST_BYTES, Keys
from shoal.errors import RemoteProtocolError, ShoalError
from shoal.messages.base import Array, Digest, Record
from shoal.protocols.machines import Moment
from shoal.protocols.sums.messages import Members, Natural, SumKeyList
from shoal.protocols.sums.terms import read_keys

Phase = Literal["keys", "shares", "masked", "agreed", "unmask", "over"]


class Came(Record):
    """What a member has sent in the phase that is open."""

    member: Natural
    rows: tuple[bytes, ...] = ()


class Failure(Record):
    """Why there is no sum."""

    code: str
    what: str
    why: str | None = None


class Gathering(Record):
    """What a collector remembers of a round.

    Parameters
    ----------
    round, query, size
        Which round, the digest of what is asked in it, and how many numbers are summed.
    phase, deadline
        How far it is, and until when it waits.
    expected, came
        Who may be heard of in this phase, and what was sent in it.
    listed, digest
        The list of keys, and its digest.
    dealers, commitments
        Who has dealt, and each dealer's commitments to all of its shares.
    survivors
        Whose vectors are in the sum.
    vectors
        The sum of the masked vectors; at the end of the numbers themselves.
    failed
        Why there is no sum.
    """

    round: Natural
    query: Digest
    size: Natural
    deadline: Moment
    phase: Phase = "keys"
    expected: Members = ()
    came: tuple[Came, ...] = ()
    listed: SumKeyList | None = None
    digest: bytes = b""
    dealers: Members = ()
    commitments: tuple[bytes, ...] = ()
    survivors: Members = ()
    vectors: Array | None = None
    failed: Failure | None = None

    @property
    def is_over(self) -> bool:
        """Whether there is a sum, or a failure."""
        return self.phase == "over"

    @property
    def total(self) -> npt.NDArray[np.int64]:
        """``(size,)`` the sum, once the round is over and has not failed."""
        assert self.is_over and self.vectors is not None
        total: npt.NDArray[np.int64] = self.vectors.expect("int64", self.size)
        return total

    @property
    def failure(self) -> ShoalError | None:
        """Why there is no sum, if the round has failed."""
        return None if self.failed is None else RemoteProtocolError(self.failed.code, self.failed.what, why=self.failed.why)

    @property
    def public_keys(self) -> dict[int, Keys]:
        """The list of keys, by member."""
        return {} if self.listed is None else read_keys(self.listed)

    @property
    def rows(self) -> dict[int, tuple[bytes, ...]]:
        """What was sent in this phase, by member."""
        return {came.member: came.rows for came in self.came}

    @property
    def present(self) -> tuple[int, ...]:
        """Who has been heard of in this phase."""
        return tuple(sorted(came.member for came in self.came))

    @property
    def summed(self) -> npt.NDArray[np.uint64]:
        """``(size,)`` sum of the masked vectors so far."""
        if self.vectors is None:
            return np.zeros(self.size, np.uint64)
        summed: npt.NDArray[np.uint64] = self.vectors.expect("uint64", self.size)
        return summed

    def committed_to(self, holder: int) -> dict[int, bytes]:
        """What each dealer has committed to for one holder."""
        assert self.listed is not None
        at = DIGEST_BYTES * self.listed.members.index(holder)
        return {dealer: row[at : at + DIGEST_BYTES] for dealer, row in zip(self.dealers, self.commitments, strict=True)}

    def ended(self, survivors: Members = (), vectors: Array | None = None, failed: Failure | None = None) -> Gathering:
        """The round is over, with a sum or with a failure; all else is forgotten."""
        number, query, size, deadline = self.round, self.query, self.size, self.deadline
        return Gathering(
            round=number, query=query, size=size, deadline=deadline, phase="over", survivors=survivors, vectors=vectors, failed=failed
        )
