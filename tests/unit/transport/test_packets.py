"""Packets: one form, one size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.codec import encode
from shoal.protocols.anonml.analysis import asked, report_bytes
from shoal.protocols.anonml.messages import Answer
from shoal.study.anonml import script_of
from shoal.study.load import parse
from shoal.study.manifest import Manifest
from shoal.study.templates import study_text
from shoal.transport.packets import GRAIN, HEAD_BYTES, TOKEN_BYTES, Packet, packet_size

SIZE = 640
TOKEN = bytes(range(256)) * 2
ONE = Packet(TOKEN[:TOKEN_BYTES], 7, b"an answer")


@given(st.binary(max_size=SIZE - HEAD_BYTES), st.integers(0, (1 << 32) - 1))
def test_a_packet_is_read_as_it_was_written(answer, place):
    packet = Packet(TOKEN[:TOKEN_BYTES], place, answer)
    data = packet.to_bytes(SIZE)
    assert len(data) == SIZE
    assert Packet.from_bytes(data, SIZE) == packet


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\x00",
        lambda data: b"\x02" + data[1:],
        lambda data: data[:-1] + b"\x01",
        lambda data: data[: HEAD_BYTES - 4] + b"\xff\xff\xff\xff" + data[HEAD_BYTES:],
        lambda data: data[: HEAD_BYTES - 1] + b"\x08" + data[HEAD_BYTES:],
    ],
)
def test_anything_else_is_no_packet(change):
    with pytest.raises(RemoteProtocolError, match="not a packet"):
        Packet.from_bytes(change(ONE.to_bytes(SIZE)), SIZE)


@pytest.mark.parametrize(
    "packet", [Packet(TOKEN, 0, b""), Packet(b"", 0, b""), Packet(TOKEN[:TOKEN_BYTES], 0, bytes(SIZE - HEAD_BYTES + 1))]
)
def test_what_does_not_fit_is_not_sent(packet):
    with pytest.raises(LocalProtocolError, match="does not fit"):
        packet.to_bytes(SIZE)


def test_every_answer_of_a_study_fits_and_no_size_tells_which_it_is():
    manifest = Manifest(parse(study_text("anonml")))
    script, size = script_of(manifest.study, manifest.digest), packet_size(manifest)
    assert size % GRAIN == 0
    sizes = set()
    for one in asked(script):
        mechanism = one.question.mechanism
        assert mechanism is not None
        report = bytes(report_bytes(mechanism.name, mechanism.cardinality))
        answer = Answer(study=manifest.digest, ticket=bytes(32), phase=script.n_phases - 1, question=23, report=report)
        sizes.add(len(Packet(TOKEN[:TOKEN_BYTES], 0, encode(answer)).to_bytes(size)))
    assert sizes == {size}
