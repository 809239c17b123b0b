"""Which way letters go, and the bare bytes of a device."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from participants import COORDINATOR, URL, Desk, manifest_of
from shoal.crypto.roster import Identity
from shoal.errors import LocalProtocolError, TransportError
from shoal.messages.base import Array
from shoal.messages.codec import encode
from shoal.participant.journal import Joined, Role
from shoal.participant.wires import Anonymous, Device, Named, body_of, has_ticket, instance_of, is_enrolled, wire_of
from shoal.protocols.ddml.messages import Draw, Update
from shoal.study.manifest import Manifest
from token_desk import token_manifest

ME = Identity.from_seed(bytes(32))


def joined(manifest: Manifest, role: Role = "sharer", name: str | None = None) -> Joined:
    return Joined(
        manifest.digest.hex(), URL, URL, COORDINATOR.public, manifest.to_bytes(), "t", "s", role=role, ticket=b"t" * 32, name=name
    )


def test_each_protocol_has_its_wire() -> None:
    people, holders = manifest_of("anonml"), manifest_of("pfds", pfds={"n_holders": 3})
    client, apart = Desk(people), Desk(people, 1)
    study = holders.digest.hex()
    assert wire_of(people, joined(people), ME, client, apart) == Anonymous(apart, people.digest.hex())
    assert wire_of(holders, joined(holders), ME, client, apart) == Named(client, study, ME)
    assert wire_of(holders, joined(holders, "reader"), ME, client, apart) == Anonymous(apart, study)


def test_a_device_is_admitted_as_the_study_says() -> None:
    for admission, n_tickets, needs_name in (("open", 0, False), ("signed", 0, True), ("token", 1, True)):
        manifest = manifest_of("ddml", ddml={"n_instances": 2, "admission": admission})
        client, apart = Desk(manifest), Desk(manifest, 1)
        wire = wire_of(manifest, joined(manifest), ME, client, apart)
        assert isinstance(wire, Device)
        assert (wire.identity is None) is (admission != "signed")
        assert wire.client is (client if admission == "signed" else apart)
        assert has_ticket(manifest) is bool(n_tickets) is (wire.ticket is not None)
        assert is_enrolled(manifest, joined(manifest)) is not needs_name
        assert is_enrolled(manifest, joined(manifest, name="x"))


def test_a_device_with_tokens_has_no_ticket() -> None:
    manifest = token_manifest("ddml", ddml={"n_instances": 2, "admission": "token"})
    client, apart = Desk(manifest), Desk(manifest, 1)

    async def mint(question: str, number: int, body: bytes) -> bytes:
        return f"{question} {number} {len(body)}".encode()

    wire = wire_of(manifest, joined(manifest), ME, client, apart, mint)
    assert isinstance(wire, Device)
    assert (wire.identity, wire.ticket, wire.client) == (None, None, apart) and not has_ticket(manifest)
    update = Update(study=manifest.digest, id=b"i" * 16, epoch=0, weights=Array.of(np.zeros(3, np.int32)))
    assert asyncio.run(wire.deliver(encode(update), "update/1")) is None
    ((body, proof),) = apart.updates
    assert proof == f"{f'update/1 1 {len(body)}'.encode().hex()} 1"


def test_readers_are_not_enrolled() -> None:
    manifest = manifest_of("pfds", pfds={"n_holders": 3})
    assert is_enrolled(manifest, joined(manifest, "reader"))
    assert not is_enrolled(manifest, joined(manifest))
    assert has_ticket(manifest_of("anonml"))


def test_an_update_has_one_form() -> None:
    weights = np.array([1, -2], np.int32)
    update = Update(study=bytes(32), id=b"i" * 16, epoch=258, weights=Array.of(weights))
    assert body_of(update) == b"i" * 16 + bytes([2, 1, 0, 0, 0, 0, 0, 0]) + weights.astype("<i4").tobytes()


def test_an_instance_is_read_or_asked_for_again() -> None:
    draw = Draw(study=bytes(32), id=b"i" * 16)
    instance = instance_of(draw, bytes([2, 1, 0, 0, 0, 0, 0, 0]) + np.array([7, -1], "<i4").tobytes())
    assert (instance.draw, instance.epoch) == (draw.id, 258)
    assert instance.weights.expect("int32", 2).tolist() == [7, -1]
    for body in (b"", bytes(7), bytes(10), b"\xff" * 12):
        with pytest.raises(TransportError, match="NET-002"):
            instance_of(draw, body)


def test_a_device_hears_nothing() -> None:
    manifest = manifest_of("ddml", ddml={"n_instances": 2})
    with pytest.raises(LocalProtocolError, match="PROTO-001"):
        asyncio.run(Device(Desk(manifest), "ab").listen(0))
