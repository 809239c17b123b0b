"""HTTP as a participant speaks it: outbound only, signed where a name is due, and nothing that tells two participants apart where not.

How requests get to the coordinator is `shoal.participant.via`; what is sent and made of answers, `shoal.participant.asking`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2

from shoal.clock import Clock
from shoal.crypto.roster import Identity
from shoal.entropy import Entropy
from shoal.errors import TransportError
from shoal.messages import codec
from shoal.messages.base import Record
from shoal.participant.asking import NotAdmittedError, Party, RefusedError, checked_url, tls_context
from shoal.participant.ways import Direct, Via
from shoal.transport.forms import (
    MAX_CONTROL_BYTES,
    MOST_IN_PAGE,
    NAME_BYTES,
    Enrolled,
    Enrolment,
    Letters,
    Members,
    Poll,
    Published,
    Received,
    from_cbor,
    from_json,
    to_json,
)
from shoal.transport.routes import CBOR, JSON, RAW, STUDIES, study_route
from shoal.transport.signing import sign

__all__ = ["Client", "NotAdmittedError", "RefusedError", "checked_url", "tls_context"]

T = TypeVar("T")
F = TypeVar("F", bound=Record)

FIRST_WAIT, LONGEST_WAIT = 0.2, 30.0
"""Seconds between two tries: doubled each time, less up to a half by chance, so that participants do not come back all at once."""

_MOST_JUMPS = 4
"""How often in a row a clock, on either side, may be put forward or back between a refusal and the next try."""

_MAX_LIST_BYTES = 1 << 20
_MOST_PAGES = 128
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FINE = 1 << 20
_MOST_DOUBLED = 20


class Client:
    """A coordinator as a participant sees it. Use it in an ``async with`` statement.

    Parameters
    ----------
    url
        The coordinator's address: https, or http to this machine or to an onion service.
    clock, entropy
        Date and make unique what is signed; tell when to try again.
    ca
        A file of certificates to trust in place of the system's, where there is no ``via``.
    via
        How requests get to the coordinator; None for directly.
    transport
        Makes what carries requests, in place of what ``via`` makes.
    sleep
        How to wait between two tries.
    is_apart
        Whether every request has a connection of its own.

    Attributes
    ----------
    via
        How requests get to the coordinator.

    Raises
    ------
    UsageError
        ``USAGE-001``: the address or the file of certificates cannot be used.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        entropy: Entropy,
        *,
        ca: Path | None = None,
        via: Via | None = None,
        transport: Callable[[], httpx2.AsyncBaseTransport] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        is_apart: bool = False,
    ) -> None:
        self.url = checked_url(url, is_tor=via is not None and via.name == "tor")
        self.via = Direct(self.url, ca) if via is None else via
        self._coordinator = Party("coordinator", self.url)
        self._clock, self._entropy = clock, entropy
        self._make, self._sleep = transport, sleep
        self._transport = transport() if transport else self.via.transport(is_apart=is_apart)
        self._skew = 0

    def apart(self) -> Client:
        """The same coordinator over connections that are not shared with anything, for what must not be linked."""
        return self._other(self.via, is_apart=True)

    def through(self, via: Via) -> Client:
        """The same coordinator, reached otherwise."""
        return self._other(via, is_apart=False)

    def _other(self, via: Via, *, is_apart: bool) -> Client:
        return Client(self.url, self._clock, self._entropy, via=via, transport=self._make, sleep=self._sleep, is_apart=is_apart)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._transport.aclose()

    async def insist(self, ask: Callable[[], Awaitable[T]], on_wait: Callable[[TransportError], None]) -> T:
        """Ask until there is an answer, however long that takes; `RefusedError` is one."""
        n = 0
        while True:
            try:
                return await ask()
            except TransportError as error:
                on_wait(error)
            await self.pause(n)
            n += 1

    async def pause(self, n: int) -> None:
        """Wait before asking again, after so many pauses before this one."""
        wait = min(FIRST_WAIT * 2 ** min(n, _MOST_DOUBLED), LONGEST_WAIT)
        await self._sleep(wait * (1 - self._entropy.below(_FINE) / (2 * _FINE)))

    async def sleep(self, seconds: float) -> None:
        """Wait so long."""
        await self._sleep(seconds)

    async def studies(self) -> list[dict[str, Any]]:
        """What the coordinator serves: objects with at least digest, title and status, all of them text."""
        data = await self._ask("GET", STUDIES, _MAX_LIST_BYTES)
        try:
            listed = json.loads(data)
            if not isinstance(listed, list) or not all(
                isinstance(one[key], str) for one in listed for key in ("digest", "title", "status")
            ):
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self._coordinator.no_answer("something that is no list of studies") from None
        return listed

    async def published(self, study: str) -> Published:
        """A manifest with its signature; neither is checked here."""
        return self._coordinator.form(from_cbor, await self._ask("GET", study_route(study, "manifest"), codec.MAX_BYTES), Published)

    async def model(self, study: str) -> bytes:
        """The model of a study that is done, as JSON; `RefusedError` ``HOST-002`` before."""
        return await self._ask("GET", study_route(study, "model"), codec.MAX_BYTES)

    async def enrol(self, study: str, identity: Identity, form: Enrolment) -> Enrolled:
        """Enrol the key of an identity, or learn under which name it is enrolled."""
        data = await self._signed(study_route(study, "enrolments"), identity, to_json(form), JSON)
        return self._coordinator.form(from_json, data, Enrolled)

    async def leave(self, study: str, identity: Identity) -> None:
        """Tell the coordinator to forget an enrolment."""
        await self._signed(study_route(study, "leave"), identity, b"")

    async def message(self, study: str, identity: Identity, payload: bytes) -> None:
        """Send a message under a name."""
        await self._signed(study_route(study, "messages"), identity, payload, CBOR)

    async def mailbox(self, study: str, identity: Identity, poll: Poll) -> Letters:
        """Letters for everyone and for this participant; those up to ``poll.after`` are acknowledged."""
        data = await self._signed(study_route(study, "mailbox"), identity, to_json(poll), JSON, codec.MAX_BYTES)
        return self._coordinator.form(from_cbor, data, Letters)

    async def board(self, study: str, after: int, wait: int = 0) -> Letters:
        """Letters for everyone."""
        target = f"{study_route(study, 'board')}?after={after}&wait={wait}"
        return self._coordinator.form(from_cbor, await self._ask("GET", target, codec.MAX_BYTES), Letters)

    async def close(self, study: str, key: str) -> None:
        """End a study by the analyst's key."""
        await self._ask("POST", study_route(study, "close"), headers={"Authorization": f"Bearer {key}"})

    async def submit(self, study: str, payload: bytes) -> None:
        """Send a message under no name. That it was accepted is all that the answer says."""
        await self._ask("POST", study_route(study, "submissions"), body=payload, kind=CBOR)

    async def submit_packet(self, study: str, packet: bytes) -> None:
        """Send a packet with a token, under no name. That it came is all that the answer says."""
        await self._ask("POST", study_route(study, "submissions"), body=packet, kind=RAW)

    async def members(self, study: str) -> Members:
        """The keys of all to whom credentials were issued that count in a study."""
        pages = await self._pages(study_route(study, "members"), Members, lambda page: page.joined)
        return Members(joined=b"".join(page.joined for page in pages))

    async def received(self, study: str) -> Received:
        """The names of all packets that came in a phase; `RefusedError` ``HOST-002`` while it is not told."""
        pages = await self._pages(study_route(study, "received"), Received, lambda page: page.names)
        return Received(phase=pages[-1].phase, names=b"".join(page.names for page in pages))

    async def _pages(self, route: str, kind: type[F], names_of: Callable[[F], bytes]) -> list[F]:
        """All pages of a list, whose names must come in order."""
        pages: list[F] = []
        after = b""
        while len(pages) < _MOST_PAGES:
            target = f"{route}?after={after.hex()}" if after else route
            pages.append(self._coordinator.form(from_cbor, await self._ask("GET", target, codec.MAX_BYTES), kind))
            names = names_of(pages[-1])
            if len(names) < NAME_BYTES * MOST_IN_PAGE:
                return pages
            if names[:NAME_BYTES] <= after:
                break
            after = names[-NAME_BYTES:]
        raise self._coordinator.no_answer("a list that does not end")

    async def draw(self, study: str) -> bytes:
        """An instance of DDML: 8 bytes of its epoch, then its weights, little-endian."""
        return await self._ask("POST", study_route(study, "draw"), codec.MAX_BYTES)

    async def update(
        self,
        study: str,
        body: bytes,
        number: int,
        *,
        identity: Identity | None = None,
        ticket: bytes | None = None,
        token: bytes | None = None,
    ) -> None:
        """Send an update of DDML, which of this participant's it is: as the study admits it, signed, with a ticket or token, or neither."""
        route = study_route(study, "update")
        if identity is not None:
            await self._signed(f"{route}?number={number}", identity, body, RAW)
            return
        given = (("Shoal-Ticket", ticket), ("Shoal-Token", token))
        headers = {name: f"{value.hex()} {number}" for name, value in given if value is not None}
        await self._ask("POST", route, body=body, kind=RAW, headers=headers)

    async def _signed(
        self, target: str, identity: Identity, body: bytes, kind: str | None = None, max_bytes: int = MAX_CONTROL_BYTES
    ) -> bytes:
        """Send a signed request; again where the coordinator's clock goes otherwise, by its time, which is used for nothing else."""
        for _ in range(_MOST_JUMPS):
            try:
                return await self._ask("POST", target, max_bytes, body, kind, self._signature(target, identity, body))
            except RefusedError as error:
                if error.code != "AUTH-003" or error.date is None:
                    raise
                self._skew = _milliseconds(error.date) - _milliseconds(self._clock.now())
        return await self._ask("POST", target, max_bytes, body, kind, self._signature(target, identity, body))

    def _signature(self, target: str, identity: Identity, body: bytes) -> dict[str, str]:
        # The path is signed as the coordinator sees it, whatever the address has in front of it.
        return {"Authorization": sign(identity, "POST", target, body, _milliseconds(self._clock.now()) + self._skew, self._entropy)}

    async def _ask(
        self,
        method: str,
        target: str,
        max_bytes: int = MAX_CONTROL_BYTES,
        body: bytes = b"",
        kind: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        return await self._coordinator.ask(self._transport, method, target, max_bytes, body, kind, headers)


def _milliseconds(when: datetime) -> int:
    return int((when - _EPOCH).total_seconds() * 1000)
