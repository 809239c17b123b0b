"""How a peer's letters travel and how it hears of others, by protocol: under its name, under none, or as the bare bytes of a device.

===========  =================================  ==================================  ==================
wire         who                                letters go to                       it hears by
===========  =================================  ==================================  ==================
`Named`      databases and holders              ``messages``                        ``mailbox``
`Anonymous`  people of AnonML, PFDS's readers   ``submissions``                     ``board``
`Posted`     people of AnonML with tokens       ``submissions``, or a relay;        ``board``
                                                each at a time of its own
`Device`     devices of DDML                    ``draw`` (answered at once),        nothing
                                                ``update``
===========  =================================  ==================================  ==================

What is anonymous goes over connections that carry nothing else. `Posted` is in `shoal.participant.posting`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.crypto.roster import Identity
from shoal.errors import LocalProtocolError, TransportError
from shoal.messages.base import Array
from shoal.messages.codec import decode, encode
from shoal.participant.client import Client
from shoal.participant.journal import Joined
from shoal.protocols.ddml.messages import MESSAGES, Draw, Instance, Update
from shoal.study.anonymity import has_tokens
from shoal.study.manifest import Manifest
from shoal.study.settings import DDML
from shoal.transport.forms import MAX_WAIT_SECONDS, Letters, Poll

_EPOCH_BYTES, _WEIGHT_BYTES = 8, 4

Mint = Callable[[str, int, bytes], Awaitable[bytes]]
"""Gives the token of an update, by its question, number and body: the same one each time."""


class Wire(ABC):
    """What carries the letters of one study."""

    listens: ClassVar[bool] = True

    @abstractmethod
    async def deliver(self, payload: bytes, question: str | None) -> bytes | None:
        """Bring a letter to the aggregator; the message that comes back at once, if one does."""

    @abstractmethod
    async def listen(self, after: int) -> Letters:
        """Letters of larger numbers, waited for; those up to this one need not be kept any longer."""


@dataclass(frozen=True)
class Named(Wire):
    """Signed requests."""

    client: Client
    study: str
    identity: Identity

    async def deliver(self, payload: bytes, _question: str | None) -> None:
        await self.client.message(self.study, self.identity, payload)

    async def listen(self, after: int) -> Letters:
        return await self.client.mailbox(self.study, self.identity, Poll(after=after, wait_seconds=MAX_WAIT_SECONDS))


@dataclass(frozen=True)
class Anonymous(Wire):
    """Requests that say nothing of their sender; the client is one that is kept apart."""

    client: Client
    study: str

    async def deliver(self, payload: bytes, _question: str | None) -> None:
        await self.client.submit(self.study, payload)

    async def listen(self, after: int) -> Letters:
        return await self.client.board(self.study, after, MAX_WAIT_SECONDS)


@dataclass(frozen=True)
class Device(Wire):
    """Bare bytes. An update is signed or carries a ticket or a token, with its own number, or nothing, as the study admits it."""

    listens: ClassVar[bool] = False

    client: Client
    study: str
    identity: Identity | None = None
    ticket: bytes | None = None
    mint: Mint | None = None

    async def deliver(self, payload: bytes, question: str | None) -> bytes | None:
        message = decode(payload, MESSAGES, bytes.fromhex(self.study))
        if isinstance(message, Draw):
            return encode(instance_of(message, await self.client.draw(self.study)))
        assert isinstance(message, Update)
        assert question is not None
        number = int(question.rpartition("/")[2])
        body = body_of(message)
        token = None if self.mint is None else await self.mint(question, number, body)
        await self.client.update(self.study, body, number, identity=self.identity, ticket=self.ticket, token=token)
        return None

    async def listen(self, _after: int) -> Letters:
        raise LocalProtocolError("PROTO-001", "A device hears nothing but the answers to its draws.")


def instance_of(draw: Draw, body: bytes) -> Instance:
    """The instance that came back for a draw; `TransportError` where it is none, and the draw is to be made again."""
    weights = body[_EPOCH_BYTES:]
    epoch = int.from_bytes(body[:_EPOCH_BYTES], "little")
    if len(body) < _EPOCH_BYTES or len(weights) % _WEIGHT_BYTES or epoch >= 1 << 63:
        what = f"The coordinator answers a draw with {len(body)} bytes, which are no instance."
        raise TransportError("NET-002", what, fix="Nothing is lost: the same command asks again.")
    return Instance(study=draw.study, draw=draw.id, epoch=epoch, weights=Array.of(np.frombuffer(weights, "<i4").astype(np.int32)))


def body_of(update: Update) -> bytes:
    """An update as a device sends it: id, epoch, weights. The same message always gives the same bytes."""
    return update.id + update.epoch.to_bytes(_EPOCH_BYTES, "little") + update.weights.data


def wire_of(
    manifest: Manifest, joined: Joined, identity: Identity, client: Client, apart: Client, mint: Mint | None = None
) -> Anonymous | Named | Device:
    """What carries a participant's letters.

    Parameters
    ----------
    manifest, joined, identity
        The study, what the participant is in it, and its key.
    client, apart
        For what carries its name, and for what does not.
    mint
        Mints the tokens of updates, where they are admitted by tokens.
    """
    study = manifest.study
    if study.protocol == "anonml" or joined.role == "reader":
        return Anonymous(apart, joined.study)
    if study.protocol != "ddml":
        return Named(client, joined.study, identity)
    match admission_of(manifest):
        case "signed":
            return Device(client, joined.study, identity=identity)
        case "token":
            return Device(apart, joined.study, ticket=joined.ticket if has_ticket(manifest) else None, mint=mint)
        case _:
            return Device(apart, joined.study)


def admission_of(manifest: Manifest) -> str:
    """How a DDML study admits updates."""
    settings = manifest.study.ddml or DDML()
    return settings.admission


def has_ticket(manifest: Manifest) -> bool:
    """Whether participants are admitted by tickets, which nobody can link to their enrolment by what is stored; not so with tokens."""
    is_admitted = manifest.study.protocol == "anonml" or (manifest.study.protocol == "ddml" and admission_of(manifest) == "token")
    return is_admitted and not has_tokens(manifest)


def is_enrolled(manifest: Manifest, joined: Joined) -> bool:
    """Whether nothing is left to enrol: a reader and whoever sends to a study that is open to anyone need no name."""
    is_open = manifest.study.protocol == "ddml" and admission_of(manifest) == "open"
    return joined.role == "reader" or is_open or joined.name is not None
