"""The HTTP client of a participant.

The participant only sends requests; it accepts none. `shoal.participant.network` decides how they
reach the coordinator, and `shoal.transport.client` sends them and checks each response.

A change must keep: requests under the participant's name are signed, and anonymous requests contain
nothing in which two participants could differ.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2
import numpy as np

from shoal.clock import Clock
from shoal.crypto.identity import Identity
from shoal.entropy import Entropy
from shoal.errors import TransportError
from shoal.messages import codec
from shoal.messages.base import Array, Record
from shoal.participant.network.base import DirectPath, NetworkPath
from shoal.protocols.ddml.messages import DDMLDraw, DDMLInstance, DDMLUpdate
from shoal.transport.api import (
    CBOR,
    JSON,
    LEAST_IN_PAGE,
    MAX_CONTROL_BYTES,
    NAME_BYTES,
    RAW,
    STUDIES,
    Enrolled,
    Enrolment,
    MemberList,
    MessagePage,
    Poll,
    ReceivedPackets,
    SignedManifest,
    from_cbor,
    from_json,
    study_route,
    to_json,
)
from shoal.transport.client import (
    HttpParty,
    NotAdmittedError,
    RefusedError,
    make_client_tls_context,
    validate_url,
)
from shoal.transport.signing import sign_request

__all__ = ["Client", "NotAdmittedError", "RefusedError", "make_client_tls_context", "validate_url"]

T = TypeVar("T")
F = TypeVar("F", bound=Record)

FIRST_WAIT, LONGEST_WAIT = 0.2, 30.0
"""Seconds between two attempts.

The wait doubles each time and is shortened by a random part of up to a half, so that participants
do not all return at the same time.
"""

_MAX_CLOCK_RETRIES = 4
"""How often in a row either clock may be changed between a refusal and the next attempt."""

_MAX_LIST_BYTES = 1 << 20
_MAX_PAGES = 4_096
"""At least 8 million names."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_JITTER_STEPS = 1 << 20
_MAX_DOUBLINGS = 20
_EPOCH_BYTES, _WEIGHT_BYTES = 8, 4


class Client:
    """A participant's client of one coordinator. Use it in an ``async with`` statement.

    Parameters
    ----------
    url
        The coordinator's address: https, or http to this machine or to an onion service.
    clock, entropy
        Date and nonce of signed requests, and the waits between attempts.
    network_path
        How requests reach the coordinator; None for a direct connection.
    make_transport
        Makes the transport, instead of `network_path`.
    sleep
        Waits between two attempts.
    is_isolated
        Whether each request uses a new connection.

    Raises
    ------
    UsageError
        ``USAGE-001``: the address cannot be used.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        entropy: Entropy,
        *,
        network_path: NetworkPath | None = None,
        make_transport: Callable[[], httpx2.AsyncBaseTransport] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        is_isolated: bool = False,
    ) -> None:
        self.url = validate_url(url, is_tor=network_path is not None and network_path.name == "tor")
        self.network_path = network_path or DirectPath(self.url)
        self._coordinator = HttpParty("coordinator", self.url)
        self._clock, self._entropy = clock, entropy
        self._make_transport, self._sleep = make_transport, sleep
        self._transport = (
            make_transport()
            if make_transport
            else self.network_path.make_transport(is_isolated=is_isolated)
        )
        self._skew = 0

    def open_isolated(self) -> Client:
        """Return a client for requests that must not be linked: one connection for each."""
        return self._reopen(self.network_path, is_isolated=True)

    def open_through(self, network_path: NetworkPath) -> Client:
        """Return a client of the same coordinator over another network path."""
        return self._reopen(network_path, is_isolated=False)

    def _reopen(self, network_path: NetworkPath, *, is_isolated: bool) -> Client:
        return Client(
            self.url,
            self._clock,
            self._entropy,
            network_path=network_path,
            make_transport=self._make_transport,
            sleep=self._sleep,
            is_isolated=is_isolated,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._transport.aclose()

    async def retry(
        self, request: Callable[[], Awaitable[T]], on_retry: Callable[[TransportError], None]
    ) -> T:
        """Send a request until the coordinator answers; `RefusedError` is an answer."""
        n = 0
        while True:
            try:
                return await request()
            except TransportError as error:
                on_retry(error)
            await self.back_off(n)
            n += 1

    async def back_off(self, n: int, most: float = LONGEST_WAIT) -> None:
        """Wait at most `most` seconds before the next attempt, after `n` earlier waits."""
        wait = min(FIRST_WAIT * 2 ** min(n, _MAX_DOUBLINGS), LONGEST_WAIT, most)
        await self._sleep(wait * (1 - self._entropy.below(_JITTER_STEPS) / (2 * _JITTER_STEPS)))

    async def sleep(self, seconds: float) -> None:
        """Wait the given number of seconds."""
        await self._sleep(seconds)

    async def fetch_studies(self) -> list[dict[str, Any]]:
        """Return the coordinator's studies: objects with at least digest, title and status."""
        data = await self._request("GET", STUDIES, _MAX_LIST_BYTES)
        try:
            listed = json.loads(data)
            if not isinstance(listed, list) or not all(
                isinstance(one[key], str) for one in listed for key in ("digest", "title", "status")
            ):
                raise ValueError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self._coordinator.bad_response_error(
                "data that is not a list of studies"
            ) from None
        return listed

    async def fetch_manifest(self, study: str) -> SignedManifest:
        """Return a manifest with its signature, both unchecked."""
        return self._coordinator.parse_body(
            from_cbor,
            await self._request("GET", study_route(study, "manifest"), codec.MAX_BYTES),
            SignedManifest,
        )

    async def fetch_model(self, study: str) -> bytes:
        """Return the model of a study as JSON; raise ``HOST-002`` before the study is done."""
        return await self._request("GET", study_route(study, "model"), codec.MAX_BYTES)

    async def enrol(self, study: str, identity: Identity, form: Enrolment) -> Enrolled:
        """Enrol the key of an identity; return the name that it is enrolled under."""
        data = await self._send_signed(
            study_route(study, "enrolments"), identity, to_json(form), JSON
        )
        return self._coordinator.parse_body(from_json, data, Enrolled)

    async def leave(self, study: str, identity: Identity) -> None:
        """Delete an enrolment at the coordinator."""
        await self._send_signed(study_route(study, "leave"), identity, b"")

    async def send_message(self, study: str, identity: Identity, payload: bytes) -> None:
        """Send a signed message."""
        await self._send_signed(study_route(study, "messages"), identity, payload, CBOR)

    async def poll_mailbox(self, study: str, identity: Identity, poll: Poll) -> MessagePage:
        """Return new messages for everyone and for this participant.

        The poll acknowledges messages up to ``poll.after``.
        """
        data = await self._send_signed(
            study_route(study, "mailbox"),
            identity,
            to_json(poll),
            JSON,
            codec.MAX_BYTES,
            poll.wait_seconds,
        )
        return self._coordinator.parse_body(from_cbor, data, MessagePage)

    async def fetch_broadcasts(self, study: str, after: int, wait: int = 0) -> MessagePage:
        """Return messages for everyone with numbers larger than `after`; wait for new ones."""
        waiting = f"&wait={wait}" if wait else ""
        target = f"{study_route(study, 'board')}?after={after}{waiting}"
        return self._coordinator.parse_body(
            from_cbor,
            await self._request("GET", target, codec.MAX_BYTES, wait=wait),
            MessagePage,
        )

    async def close_study(self, study: str, key: str) -> None:
        """End a study with the analyst's key."""
        await self._request(
            "POST", study_route(study, "close"), headers={"Authorization": f"Bearer {key}"}
        )

    async def submit_message(self, study: str, payload: bytes) -> None:
        """Send a message without a name. The response only says that it was accepted."""
        await self._request(
            "POST", study_route(study, "submissions"), body=payload, content_type=CBOR
        )

    async def submit_packet(self, study: str, packet: bytes) -> None:
        """Send a packet with a token, without a name. The response only says that it arrived."""
        await self._request(
            "POST", study_route(study, "submissions"), body=packet, content_type=RAW
        )

    async def fetch_members(self, study: str) -> MemberList:
        """Return the keys of all members who have a credential that is valid in a study."""
        _, keys = await self._fetch_pages(
            study_route(study, "members"), MemberList, lambda page: page.joined
        )
        return MemberList(joined=keys)

    async def fetch_received(self, study: str) -> ReceivedPackets:
        """Return the names of all packets that arrived in a phase.

        Raise `RefusedError` ``HOST-002`` before the list is published.
        """
        last, names = await self._fetch_pages(
            study_route(study, "received"), ReceivedPackets, lambda page: page.names
        )
        return ReceivedPackets(phase=last.phase, names=names)

    async def _fetch_pages(
        self, route: str, kind: type[F], get_names: Callable[[F], bytes]
    ) -> tuple[F, bytes]:
        """Return the last page of a list and all names; the names in it must be in order."""
        parts: list[bytes] = []
        after = b""
        while len(parts) < _MAX_PAGES:
            target = f"{route}?after={after.hex()}" if after else route
            page = self._coordinator.parse_body(
                from_cbor, await self._request("GET", target, codec.MAX_BYTES), kind
            )
            names = get_names(page)
            # The page may begin before the name of the request.
            parts.append(_select_later(names, after))
            if len(names) < NAME_BYTES * LEAST_IN_PAGE:
                return page, b"".join(parts)
            if not parts[-1]:
                break
            after = names[-NAME_BYTES:]
        raise self._coordinator.bad_response_error("a list that does not end")

    async def draw_instance(self, study: str, draw: DDMLDraw) -> DDMLInstance:
        """Return an instance of DDML, in reply to a draw."""
        body = await self._request("POST", study_route(study, "draw"), codec.MAX_BYTES)
        return parse_instance(draw, body)

    async def send_update(
        self,
        study: str,
        update: DDMLUpdate,
        number: int,
        *,
        identity: Identity | None = None,
        ticket: bytes | None = None,
        token: bytes | None = None,
    ) -> None:
        """Send an update of DDML: signed, with a ticket, with a token, or without any of these.

        `number` counts the updates of this participant from 0.
        """
        route, body = study_route(study, "update"), encode_update_body(update)
        if identity is not None:
            await self._send_signed(f"{route}?number={number}", identity, body, RAW)
            return
        given = (("Shoal-Ticket", ticket), ("Shoal-Token", token))
        headers = {name: f"{value.hex()} {number}" for name, value in given if value is not None}
        await self._request("POST", route, body=body, content_type=RAW, headers=headers)

    async def _send_signed(
        self,
        target: str,
        identity: Identity,
        body: bytes,
        content_type: str | None = None,
        max_bytes: int = MAX_CONTROL_BYTES,
        wait: float = 0,
    ) -> bytes:
        """Send a signed request; send it again with the coordinator's time if the clocks differ.

        The coordinator's time is used for nothing else.
        """
        for _ in range(_MAX_CLOCK_RETRIES):
            try:
                return await self._request(
                    "POST",
                    target,
                    max_bytes,
                    body,
                    content_type,
                    self._make_signature_header(target, identity, body),
                    wait,
                )
            except RefusedError as error:
                if error.code != "AUTH-003" or error.date is None:
                    raise
                self._skew = _to_milliseconds(error.date) - _to_milliseconds(self._clock.now())
        return await self._request(
            "POST",
            target,
            max_bytes,
            body,
            content_type,
            self._make_signature_header(target, identity, body),
            wait,
        )

    def _make_signature_header(
        self, target: str, identity: Identity, body: bytes
    ) -> dict[str, str]:
        # The path is signed as the coordinator sees it, without the path of its address.
        return {
            "Authorization": sign_request(
                identity,
                "POST",
                target,
                body,
                _to_milliseconds(self._clock.now()) + self._skew,
                self._entropy,
            )
        }

    async def _request(
        self,
        method: str,
        target: str,
        max_bytes: int = MAX_CONTROL_BYTES,
        body: bytes = b"",
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
        wait: float = 0,
    ) -> bytes:
        """Send a request; `wait` is the time for which a long poll asks."""
        return await self._coordinator.allow_wait(wait).request(
            self._transport, method, target, max_bytes, body, content_type, headers
        )


def parse_instance(draw: DDMLDraw, body: bytes) -> DDMLInstance:
    """Parse the response to a draw: 8 bytes of epoch, then int32 weights, little-endian.

    Raise `TransportError` for any other content, so that the draw is sent again.
    """
    weights = body[_EPOCH_BYTES:]
    epoch = int.from_bytes(body[:_EPOCH_BYTES], "little")
    if (
        not _EPOCH_BYTES <= len(body) <= DDMLInstance.max_bytes
        or len(weights) % _WEIGHT_BYTES
        or epoch >= 1 << 63
    ):
        raise TransportError(
            "NET-002",
            f"The coordinator answered a draw with {len(body)} bytes that are not an instance.",
            fix="Nothing is lost. Run the same command to try again.",
        )
    return DDMLInstance(
        study=draw.study,
        draw=draw.id,
        epoch=epoch,
        weights=Array.from_values(np.frombuffer(weights, "<i4").astype(np.int32)),
    )


def encode_update_body(update: DDMLUpdate) -> bytes:
    """Encode an update as a request body: id, epoch, weights.

    The same update always gives the same bytes.
    """
    return update.id + update.epoch.to_bytes(_EPOCH_BYTES, "little") + update.weights.data


def _select_later(names: bytes, after: bytes) -> bytes:
    """Return the names after a name, from sorted and concatenated ones."""
    starts = range(0, len(names), NAME_BYTES)
    n = next((i for i in starts if names[i : i + NAME_BYTES] > after), len(names))
    return names[n:]


def _to_milliseconds(when: datetime) -> int:
    return int((when - _EPOCH).total_seconds() * 1000)
