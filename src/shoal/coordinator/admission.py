"""Who may send an update to a study of DDML: anybody, an enrolled key that signs it, or whoever has a token or a ticket.

==========  ============================================================================================================
admission   what an update carries
==========  ============================================================================================================
open        nothing
signed      ``?number=NUMBER``, which of its key's updates this is, and ``Authorization``, as every signed request
token       ``Shoal-Token: TOKEN NUMBER``, the hexadecimal digits of a token that is for the body of the update, and which of its
            sender's updates this is; where the manifest names no issuer, ``Shoal-Ticket: TICKET NUMBER``
==========  ============================================================================================================

Numbers begin with 0 and end below the number of updates that the study asks of each device. One is used for one body: the same bytes may
come again, others are refused. So each key, credential or ticket counts as often as the study says, however often it sends.

An update is admitted in two steps. `Admission.check` looks at it and changes nothing; `Admission.use` uses its number up. What is wrong
with the update itself is found in between, so that one that is refused leaves its number free.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from concurrent.futures import Executor
from typing import ClassVar

from shoal.coordinator.store.base import Accepted, Named, Store
from shoal.crypto.tokens import TOKEN_BYTES, Presented, Verifier, pseudonym_of
from shoal.errors import RemoteProtocolError
from shoal.study.anonymity import Slots, name_of_pseudonym, scope_of
from shoal.study.manifest import Manifest
from shoal.transport import signing
from shoal.transport.batching import Batched
from shoal.transport.forms import TICKET_BYTES
from shoal.transport.problems import RequestError, over

TICKET_HEADER, TOKEN_HEADER = b"shoal-ticket", b"shoal-token"

KNOWN_MILLISECONDS = 10_000
"""How long a key that was enrolled is taken to be enrolled still: it may have left."""

_MOST_KNOWN = 100_000
_MOST_AT_ONCE, _MOST_TOKENS = 256, 64
_TICKET = re.compile(rf"([0-9a-f]{{{2 * TICKET_BYTES}}}) ([0-9]{{1,9}})")
_TOKEN = re.compile(rf"([0-9a-f]{{{2 * TOKEN_BYTES}}}) ([0-9]{{1,9}})")
_NUMBER = re.compile(r"[^?]*\?number=([0-9]{1,9})")


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

    async def check(self, target: str, body: bytes, credential: str | None) -> Named | None:  # noqa: ARG002
        """What an update would use up, by its target and body as they were sent; `RemoteProtocolError` for one that is not let in."""
        return None

    async def use(self, named: Named) -> None:
        """Use it up; `RemoteProtocolError` where that cannot be, for good."""


class _Numbered(Admission):
    """Lets in what has a number of its own, and each number once."""

    def __init__(self, store: Store, study: str, n_updates: int, executor: Executor) -> None:
        self._study, self._n_updates = study, n_updates
        self._use = Batched[Named, Accepted](lambda named: list(store.use_many(study, named)), executor, _MOST_AT_ONCE)

    async def use(self, named: Named) -> None:
        match await self._use(named):
            case "unissued":
                raise RemoteProtocolError("AUTH-002", "The update's ticket was not issued.")
            case "conflict":
                raise RemoteProtocolError("HOST-005", "The update's number was used before, for other bytes.", fix="Send those again.")
            case "over":
                raise over(self._study)


class Signed(_Numbered):
    """Lets in what an enrolled key has signed, as often as a device may send updates."""

    header: ClassVar[bytes | None] = b"authorization"
    is_anonymous: ClassVar[bool] = False

    def __init__(self, store: Store, study: str, n_updates: int, executor: Executor, now: Callable[[], int]) -> None:
        super().__init__(store, study, n_updates, executor)
        self._now = now
        self._name_of = Batched[bytes, str | None](lambda keys: [store.name_of(study, key) for key in keys], executor, _MOST_AT_ONCE)
        self._seen: dict[bytes, int] = {}

    async def check(self, target: str, body: bytes, credential: str | None) -> Named:
        now = self._now()
        key = signing.verify(credential, "POST", target, body, now).key
        if not await self._is_enrolled(key, now):
            raise RemoteProtocolError("ENROL-001", "The key that signed this update is not enrolled.", fix="Enrol first: shoal join")
        found = _NUMBER.fullmatch(target)
        if found is None or int(found[1]) >= self._n_updates:
            raise RequestError(400, "HOST-006", f"The query's number is not one whole number from 0 to {self._n_updates - 1}.")
        return _named(b"shoal ddml signed update 1\x00", key, int(found[1]), body)

    async def _is_enrolled(self, key: bytes, now: int) -> bool:
        if abs(now - self._seen.get(key, -KNOWN_MILLISECONDS)) < KNOWN_MILLISECONDS:
            return True
        if await self._name_of(key) is None:
            return False
        if len(self._seen) >= _MOST_KNOWN:
            self._seen.clear()
        self._seen[key] = now
        return True


class Tickets(_Numbered):
    """Lets in what comes with a ticket that was issued, as often as a device may send updates."""

    header: ClassVar[bytes | None] = TICKET_HEADER

    async def check(self, target: str, body: bytes, credential: str | None) -> Named:  # noqa: ARG002
        found = _TICKET.fullmatch(credential or "")
        if found is None or int(found[2]) >= self._n_updates:
            raise RemoteProtocolError("AUTH-001", "The update carries no ticket, or one for more updates than the study has.")
        ticket = bytes.fromhex(found[1])
        return _named(b"shoal ddml update 1\x00", ticket, int(found[2]), body, hashlib.sha256(ticket).digest())


class Tokens(_Numbered):
    """Lets in what comes with a token of a member, for this update and this number: each number once from everyone.

    Parameters
    ----------
    verifying
        Where tokens are verified: together with all that came meanwhile.
    """

    header: ClassVar[bytes | None] = TOKEN_HEADER

    def __init__(self, store: Store, study: str, n_updates: int, executor: Executor, manifest: Manifest, verifying: Executor) -> None:
        super().__init__(store, study, n_updates, executor)
        assert manifest.issuer_key is not None
        self._slots = Slots(manifest)
        verifier = Verifier(manifest.issuer_key, scope_of(manifest))
        self._verify = Batched[Presented, bool](verifier.verify_many, verifying, _MOST_TOKENS)

    async def check(self, target: str, body: bytes, credential: str | None) -> Named:  # noqa: ARG002
        found = _TOKEN.fullmatch(credential or "")
        if found is None or int(found[2]) >= self._n_updates:
            raise RemoteProtocolError("AUTH-001", "The update carries no token, or one for more updates than the study has.")
        token = bytes.fromhex(found[1])
        if not await self._verify(Presented(token, self._slots.context(int(found[2])), body, 0)):
            raise RemoteProtocolError("TOKEN-001", "The update's token is not valid for it.")
        return Named(name_of_pseudonym(pseudonym_of(token)), hashlib.sha256(body).digest())


def _named(kind: bytes, whose: bytes, number: int, body: bytes, ticket: bytes | None = None) -> Named:
    """A number of a key or a ticket: who reads it in the store, and knows neither, learns nothing of them."""
    return Named(hashlib.sha256(kind + whose + number.to_bytes(4, "big")).digest(), hashlib.sha256(body).digest(), ticket)
