"""What a member of a secure sum remembers of the round that is open; it is saved, and its secrets last as long as they are needed."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shoal.crypto.context import Keys
from shoal.crypto.dealing import Secrets
from shoal.messages.base import Digest, Record
from shoal.protocols.sums.messages import Members, Natural, SumKeyList
from shoal.protocols.sums.terms import read_keys

Secret = Annotated[bytes, Field(repr=False)]


class Sitting(Record):
    """What a member remembers of a round.

    Parameters
    ----------
    round, query, phase
        Which round, what is asked in it, and how far it is.
    mask, own, box
        The member's secrets of this round; empty once they are not needed any more.
    published
        The keys that it has sent, one after the other.
    listed, digest
        The list of keys, once it is agreed to, and its digest, which all that is signed from then on refers to.
    kept
        The member's own shares of its own secrets.
    dealers, shares
        The members that have dealt, itself included, and the shares that it holds of each.
    survivors
        The list of survivors that it has signed.
    """

    round: Natural
    query: Digest
    phase: Literal["keys", "shares", "ready", "masked", "agreed", "over"] = "keys"
    mask: Secret = b""
    own: Secret = b""
    box: Secret = b""
    published: bytes = b""
    listed: SumKeyList | None = None
    digest: bytes = b""
    kept: Secret = b""
    dealers: Members = ()
    shares: Annotated[tuple[bytes, ...], Field(repr=False)] = ()
    survivors: Members = ()

    @property
    def is_ready(self) -> bool:
        """Whether all is there that the vector is masked with: time to ask the ledger."""
        return self.phase == "ready"

    @property
    def is_over(self) -> bool:
        """Whether the member has no more part in the round."""
        return self.phase == "over"

    def ended(self) -> Sitting:
        """The round is over for this member: it has done its part, was refused by its ledger, or was left out. All secrets are erased."""
        return Sitting(round=self.round, query=self.query, phase="over")

    @property
    def secrets(self) -> Secrets:
        """What the member keeps to itself."""
        return Secrets(self.mask, self.own, self.box)

    @property
    def public_keys(self) -> dict[int, Keys]:
        """The list of keys, by member."""
        return {} if self.listed is None else read_keys(self.listed)
