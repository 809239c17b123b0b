"""Deliveries of a participant, and the request bodies of DDML."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from shoal.crypto.identity import Identity
from shoal.errors import LocalProtocolError, TransportError
from shoal.messages.base import Array
from shoal.messages.codec import encode
from shoal.participant.client import encode_update_body, parse_instance
from shoal.participant.delivery import (
    AnonymousDelivery,
    DDMLDelivery,
    SignedDelivery,
    StudyContext,
    is_enrolled,
    make_delivery,
)
from shoal.participant.journal import JoinedStudy, Role
from shoal.protocols.ddml.messages import DDMLDraw, DDMLUpdate
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest
from tests.support.credentials import token_manifest, tokens
from tests.support.participants import COORDINATOR, URL, Desk, make_manifest

__all__ = ["tokens"]

ME = Identity.from_seed(bytes(32))


def joined(manifest: Manifest, role: Role = "sharer", name: str | None = None) -> JoinedStudy:
    return JoinedStudy(
        manifest.digest.hex(),
        URL,
        URL,
        COORDINATOR.public_key,
        manifest.to_bytes(),
        "t",
        "s",
        role=role,
        ticket=b"t" * 32,
        name=name,
    )


def make_context(
    manifest: Manifest, client: Any = None, role: Role = "sharer", name: str | None = None
) -> StudyContext:
    """Return a context of which only study, record and client are used."""
    unused: Any = None
    record = joined(manifest, role, name)
    return StudyContext(StudyHandle(manifest), record, unused, unused, client, unused, unused)


def has_tickets(manifest: Manifest) -> bool:
    return StudyHandle(manifest).has_tickets


def test_make_delivery_follows_protocol_and_role() -> None:
    people, holders = make_manifest("anonml"), make_manifest("pfds", pfds={"n_holders": 3})
    client, isolated = Desk(people), Desk(people, 1)
    study = holders.digest.hex()
    assert make_delivery(make_context(people, client), ME, isolated) == AnonymousDelivery(
        isolated, people.digest.hex()
    )
    assert make_delivery(make_context(holders, client), ME, isolated) == SignedDelivery(
        client, study, ME
    )
    reader = make_context(holders, client, "reader")
    assert make_delivery(reader, ME, isolated) == AnonymousDelivery(isolated, study)


@pytest.mark.parametrize(
    ("admission", "has_ticket", "needs_name"),
    [("open", False, False), ("signed", False, True), ("token", True, True)],
)
def test_make_delivery_of_device_follows_admission(
    admission: str, has_ticket: bool, needs_name: bool
) -> None:
    manifest = make_manifest("ddml", ddml={"n_instances": 2, "admission": admission})
    client, isolated = Desk(manifest), Desk(manifest, 1)
    delivery = make_delivery(make_context(manifest, client), ME, isolated)
    assert isinstance(delivery, DDMLDelivery)
    assert (delivery.identity is None) is (admission != "signed")
    assert delivery.client is (client if admission == "signed" else isolated)
    assert has_tickets(manifest) is has_ticket is (delivery.ticket is not None)
    assert is_enrolled(make_context(manifest)) is not needs_name
    assert is_enrolled(make_context(manifest, name="x"))


def test_device_with_tokens_has_no_ticket() -> None:
    manifest = token_manifest("ddml", ddml={"n_instances": 2, "admission": "token"})
    client, isolated = Desk(manifest), Desk(manifest, 1)

    async def mint(question: str, number: int, update: DDMLUpdate) -> bytes:
        return f"{question} {number} {len(encode_update_body(update))}".encode()

    delivery = make_delivery(make_context(manifest, client), ME, isolated, mint)
    assert isinstance(delivery, DDMLDelivery)
    assert (delivery.identity, delivery.ticket, delivery.client) == (None, None, isolated)
    assert not has_tickets(manifest)
    update = DDMLUpdate(
        study=manifest.digest,
        id=b"i" * 16,
        epoch=0,
        weights=Array.from_values(np.zeros(3, np.int32)),
    )
    assert asyncio.run(delivery.send(encode(update), "update/1")) is None
    ((body, proof),) = isolated.updates
    assert proof == f"{f'update/1 1 {len(body)}'.encode().hex()} 1"


def test_readers_do_not_enrol() -> None:
    manifest = make_manifest("pfds", pfds={"n_holders": 3})
    assert is_enrolled(make_context(manifest, role="reader"))
    assert not is_enrolled(make_context(manifest))
    assert has_tickets(make_manifest("anonml"))


def test_encode_update_body_gives_same_bytes() -> None:
    weights = np.array([1, -2], np.int32)
    update = DDMLUpdate(
        study=bytes(32), id=b"i" * 16, epoch=258, weights=Array.from_values(weights)
    )
    assert (
        encode_update_body(update)
        == b"i" * 16 + bytes([2, 1, 0, 0, 0, 0, 0, 0]) + weights.astype("<i4").tobytes()
    )


def test_parse_instance_rejects_other_content_with_transport_error() -> None:
    draw = DDMLDraw(study=bytes(32), id=b"i" * 16)
    instance = parse_instance(
        draw, bytes([2, 1, 0, 0, 0, 0, 0, 0]) + np.array([7, -1], "<i4").tobytes()
    )
    assert (instance.draw, instance.epoch) == (draw.id, 258)
    assert instance.weights.expect("int32", 2).tolist() == [7, -1]
    for body in (b"", bytes(7), bytes(10), b"\xff" * 12):
        with pytest.raises(TransportError, match="NET-002"):
            parse_instance(draw, body)


def test_ddml_delivery_refuses_to_poll() -> None:
    manifest = make_manifest("ddml", ddml={"n_instances": 2})
    with pytest.raises(LocalProtocolError, match="PROTO-001"):
        asyncio.run(DDMLDelivery(Desk(manifest), "ab").poll_messages(0))
