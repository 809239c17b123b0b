"""Who may send an update to a study of DDML: anybody, an enrolled key that signs it, or a ticket.

==========  ============================================================================================================
admission   what an update carries
==========  ============================================================================================================
open        nothing
signed      ``Authorization``, as every signed request; that it came before does no harm, because the update has an id
token       ``Shoal-Ticket: TICKET NUMBER``, the ticket's hexadecimal digits and which of its updates this is
==========  ============================================================================================================

A ticket's number is used for one body: the same bytes may come again, others are refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from concurrent.futures import Executor
from typing import ClassVar

from shoal.coordinator.batching import Batched
from shoal.coordinator.store.base import Accepted, Store
from shoal.errors import RemoteProtocolError
from shoal.transport import signing
from shoal.transport.forms import TICKET_BYTES

TICKET_HEADER = b"shoal-ticket"

KNOWN_MILLISECONDS = 10_000
"""How long a key that was enrolled is taken to be enrolled still: it may have left."""

_MOST_KNOWN = 100_000
_MOST_AT_ONCE = 256
_TICKET = re.compile(rf"([0-9a-f]{{{2 * TICKET_BYTES}}}) ([0-9]{{1,9}})")


class Admission:
    """Lets everyone in.

    Parameters
    ----------
    header
        Of the request, in small letters: what `check` is given of it. None where it is given nothing.
    is_anonymous
        Whether the sender is told nothing of what became of the update.
    """

    header: ClassVar[bytes | None] = None
    is_anonymous: ClassVar[bool] = True

    async def check(self, target: str, body: bytes, credential: str | None) -> None:
        """`RemoteProtocolError` for an update that is not let in; its target and body are what was sent."""


class Signed(Admission):
    """Lets in what an enrolled key has signed."""

    header: ClassVar[bytes | None] = b"authorization"
    is_anonymous: ClassVar[bool] = False

    def __init__(self, store: Store, study: str, now: Callable[[], int], executor: Executor) -> None:
        self._now = now
        self._name_of = Batched[bytes, str | None](lambda keys: [store.name_of(study, key) for key in keys], executor, _MOST_AT_ONCE)
        self._seen: dict[bytes, int] = {}

    async def check(self, target: str, body: bytes, credential: str | None) -> None:
        now = self._now()
        key = signing.verify(credential, "POST", target, body, now).key
        if abs(now - self._seen.get(key, -KNOWN_MILLISECONDS)) < KNOWN_MILLISECONDS:
            return
        if await self._name_of(key) is None:
            raise RemoteProtocolError("ENROL-001", "The key that signed this update is not enrolled.", fix="Enrol first: shoal join")
        if len(self._seen) >= _MOST_KNOWN:
            self._seen.clear()
        self._seen[key] = now


class Tickets(Admission):
    """Lets in what comes with a ticket that was issued, as often as a device may send updates."""

    header: ClassVar[bytes | None] = TICKET_HEADER

    def __init__(self, store: Store, study: str, n_updates: int, executor: Executor) -> None:
        self._store, self._study, self._n_updates = store, study, n_updates
        self._use = Batched[tuple[bytes, bytes, bytes], Accepted | None](self._use_all, executor, _MOST_AT_ONCE)
        self._issued: set[bytes] = set()

    async def check(self, target: str, body: bytes, credential: str | None) -> None:  # noqa: ARG002
        found = _TICKET.fullmatch(credential or "")
        if found is None or int(found[2]) >= self._n_updates:
            raise RemoteProtocolError("AUTH-001", "The update carries no ticket, or one for more updates than the study has.")
        ticket, number = bytes.fromhex(found[1]), int(found[2])
        name = hashlib.sha256(b"shoal ddml update 1\x00" + ticket + number.to_bytes(4, "big")).digest()
        used = await self._use((hashlib.sha256(ticket).digest(), name, hashlib.sha256(body).digest()))
        if used is None:
            raise RemoteProtocolError("AUTH-002", "The update's ticket was not issued.")
        if used == "conflict":
            raise RemoteProtocolError("HOST-005", "The update's ticket was used before, for other bytes.")
        if used == "over":
            raise RemoteProtocolError("HOST-002", "The study has ended.")

    def _use_all(self, asked: list[tuple[bytes, bytes, bytes]]) -> list[Accepted | None]:
        is_in = [self._is_issued(ticket) for ticket, _, _ in asked]
        named = [(name, body) for (_, name, body), admits in zip(asked, is_in, strict=True) if admits]
        used = iter(self._store.use_many(self._study, named) if named else ())
        return [next(used) if admits else None for admits in is_in]

    def _is_issued(self, ticket: bytes) -> bool:
        """A ticket that was issued stays issued; of others nothing is remembered."""
        if ticket not in self._issued:
            if not self._store.has_ticket(self._study, ticket):
                return False
            if len(self._issued) >= _MOST_KNOWN:
                self._issued.clear()
            self._issued.add(ticket)
        return True
