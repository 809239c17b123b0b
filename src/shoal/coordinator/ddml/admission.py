"""Who may send an update to a DDML study.

`DDMLStudies` makes one `Admission` for each study, by its setting ``admission``. An update carries

open
    nothing
signed
    ``?number=NUMBER``, the number of the update among those of its key, and ``Authorization`` like
    every signed request
token
    ``Shoal-Token: TOKEN NUMBER``: the hexadecimal digits of a token for the body of the update, and
    the number of the update among those of its sender; if the manifest names no issuer,
    ``Shoal-Ticket: TICKET NUMBER``

Numbers begin with 0 and end below the number of updates that the study asks of each device. A
number is used for one body: the same bytes may be sent again, other bytes are rejected. Each key,
credential or ticket therefore counts at most the allowed number of times.

An update is admitted in two steps. `Admission.check` checks it and changes nothing;
`Admission.use` uses up its number. The update itself is checked in between, so that a rejected
update leaves its number free.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from concurrent.futures import Executor
from typing import ClassVar

from shoal.coordinator.store.base import Store, SubmissionName, SubmissionOutcome
from shoal.crypto.credentials.tokens import (
    TOKEN_BYTES,
    PresentedToken,
    TokenVerifier,
    read_pseudonym,
)
from shoal.errors import RemoteProtocolError
from shoal.study.delivery import TokenSlots, compute_scope, hash_pseudonym
from shoal.study.manifest import Manifest
from shoal.transport import signing
from shoal.transport.api import TICKET_BYTES
from shoal.transport.batching import CallBatcher
from shoal.transport.requests import RequestError, study_ended_error

TICKET_HEADER, TOKEN_HEADER = b"shoal-ticket", b"shoal-token"

KNOWN_MILLISECONDS = 10_000
"""How long an enrolled key is assumed to stay enrolled; it may have left."""

_MAX_KNOWN = 100_000
_MAX_AT_ONCE, _MAX_TOKENS = 256, 64
_TICKET = re.compile(rf"([0-9a-f]{{{2 * TICKET_BYTES}}}) ([0-9]{{1,9}})")
_TOKEN = re.compile(rf"([0-9a-f]{{{2 * TOKEN_BYTES}}}) ([0-9]{{1,9}})")
_NUMBER = re.compile(r"[^?]*\?number=([0-9]{1,9})")


class Admission:
    """Admission of everyone.

    Parameters
    ----------
    header
        Name of the request header, in lower case, that `check` gets as the credential; None for
        none.
    is_anonymous
        Whether the sender does not learn the outcome of its update.
    """

    header: ClassVar[bytes | None] = None
    is_anonymous: ClassVar[bool] = True

    async def check(
        self,
        target: str,  # noqa: ARG002
        body: bytes,  # noqa: ARG002
        credential: str | None,  # noqa: ARG002
    ) -> SubmissionName | None:
        """Return the name that an update uses up; raise `RemoteProtocolError` to reject it.

        ``target`` and ``body`` are as they were sent.
        """
        return None

    async def use(self, name: SubmissionName) -> None:
        """Use up a name; raise `RemoteProtocolError` if that is not possible."""


class _NumberedAdmission(Admission):
    """Admission of updates with numbers, each number once."""

    def __init__(self, store: Store, study: str, n_updates: int, executor: Executor) -> None:
        self._study, self._n_updates = study, n_updates
        self._use = CallBatcher[SubmissionName, SubmissionOutcome](
            lambda names: list(store.use_names(study, names)), executor, _MAX_AT_ONCE
        )

    async def use(self, name: SubmissionName) -> None:
        match await self._use(name):
            case "unissued":
                raise RemoteProtocolError("AUTH-002", "The update's ticket was not issued.")
            case "conflict":
                raise RemoteProtocolError(
                    "HOST-005",
                    "The update's number was used before, for other bytes.",
                    fix="Send the same bytes as the first time.",
                )
            case "over":
                raise study_ended_error(self._study)


class SignedAdmission(_NumberedAdmission):
    """Admission of updates that an enrolled key has signed."""

    header: ClassVar[bytes | None] = b"authorization"
    is_anonymous: ClassVar[bool] = False

    def __init__(
        self, store: Store, study: str, n_updates: int, executor: Executor, now: Callable[[], int]
    ) -> None:
        super().__init__(store, study, n_updates, executor)
        self._now = now
        self._find_name = CallBatcher[bytes, str | None](
            lambda keys: [store.find_name(study, key) for key in keys], executor, _MAX_AT_ONCE
        )
        self._seen: dict[bytes, int] = {}

    async def check(self, target: str, body: bytes, credential: str | None) -> SubmissionName:
        now = self._now()
        key = signing.verify_request(credential, "POST", target, body, now).key
        if not await self._is_enrolled(key, now):
            raise RemoteProtocolError(
                "ENROL-001",
                "The key that signed this update is not enrolled.",
                fix="Enrol first: shoal join",
            )
        match = _NUMBER.fullmatch(target)
        if match is None or int(match[1]) >= self._n_updates:
            raise RequestError(
                400,
                "HOST-006",
                f"The query's number is not one whole number from 0 to {self._n_updates - 1}.",
            )
        return _make_name(b"shoal ddml signed update 1\x00", key, int(match[1]), body)

    async def _is_enrolled(self, key: bytes, now: int) -> bool:
        if abs(now - self._seen.get(key, -KNOWN_MILLISECONDS)) < KNOWN_MILLISECONDS:
            return True
        if await self._find_name(key) is None:
            return False
        if len(self._seen) >= _MAX_KNOWN:
            self._seen.clear()
        self._seen[key] = now
        return True


class TicketAdmission(_NumberedAdmission):
    """Admission of updates with a ticket that was issued."""

    header: ClassVar[bytes | None] = TICKET_HEADER

    async def check(self, target: str, body: bytes, credential: str | None) -> SubmissionName:  # noqa: ARG002
        match = _TICKET.fullmatch(credential or "")
        if match is None or int(match[2]) >= self._n_updates:
            raise RemoteProtocolError(
                "AUTH-001",
                "The update carries no ticket, or one for more updates than the study has.",
            )
        ticket = bytes.fromhex(match[1])
        return _make_name(
            b"shoal ddml update 1\x00", ticket, int(match[2]), body, hashlib.sha256(ticket).digest()
        )


class TokenAdmission(_NumberedAdmission):
    """Admission of updates with a member's token for this update and number.

    Parameters
    ----------
    token_executor
        Verifies tokens, all that wait in one call.
    """

    header: ClassVar[bytes | None] = TOKEN_HEADER

    def __init__(
        self,
        store: Store,
        study: str,
        n_updates: int,
        executor: Executor,
        manifest: Manifest,
        token_executor: Executor,
    ) -> None:
        super().__init__(store, study, n_updates, executor)
        assert manifest.issuer_key is not None
        self._slots = TokenSlots(manifest)
        verifier = TokenVerifier(manifest.issuer_key, compute_scope(manifest))
        self._verify = CallBatcher[PresentedToken, bool](
            verifier.verify_many, token_executor, _MAX_TOKENS
        )

    async def check(self, target: str, body: bytes, credential: str | None) -> SubmissionName:  # noqa: ARG002
        match = _TOKEN.fullmatch(credential or "")
        if match is None or int(match[2]) >= self._n_updates:
            raise RemoteProtocolError(
                "AUTH-001",
                "The update carries no token, or one for more updates than the study has.",
            )
        token = bytes.fromhex(match[1])
        if not await self._verify(
            PresentedToken(token, self._slots.encode_context(int(match[2])), body, 0)
        ):
            raise RemoteProtocolError("TOKEN-001", "The update's token is not valid for it.")
        return SubmissionName(hash_pseudonym(read_pseudonym(token)), hashlib.sha256(body).digest())


def _make_name(
    kind: bytes, owner: bytes, number: int, body: bytes, ticket: bytes | None = None
) -> SubmissionName:
    """Return the name of an update with a number of a key or ticket (``owner``).

    Someone who reads the name in the store, and does not know the key or ticket, learns nothing
    about it.
    """
    return SubmissionName(
        hashlib.sha256(kind + owner + number.to_bytes(4, "big")).digest(),
        hashlib.sha256(body).digest(),
        ticket,
    )
