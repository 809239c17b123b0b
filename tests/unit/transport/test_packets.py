"""Packets: one format, one size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import LocalProtocolError, RemoteProtocolError
from shoal.messages.codec import encode
from shoal.protocols.anonml.analysis import report_bytes, summarise_questions
from shoal.protocols.anonml.messages import AnonMLAnswer
from shoal.study.anonml import build_script
from shoal.study.delivery import HEAD_BYTES, PACKET_MULTIPLE, compute_packet_size
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.starters import read_starter
from shoal.transport.packets import TOKEN_BYTES, Packet

SIZE = 640
TOKEN = bytes(range(256)) * 2
ONE = Packet(TOKEN[:TOKEN_BYTES], 7, b"an answer")


@given(st.binary(max_size=SIZE - HEAD_BYTES), st.integers(0, (1 << 32) - 1))
def test_packet_round_trip(answer, place):
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
def test_from_bytes_rejects_other_bytes(change):
    with pytest.raises(RemoteProtocolError, match="not a packet"):
        Packet.from_bytes(change(ONE.to_bytes(SIZE)), SIZE)


@pytest.mark.parametrize(
    "packet",
    [
        Packet(TOKEN, 0, b""),
        Packet(b"", 0, b""),
        Packet(TOKEN[:TOKEN_BYTES], 0, bytes(SIZE - HEAD_BYTES + 1)),
    ],
)
def test_to_bytes_rejects_too_long_answer(packet):
    with pytest.raises(LocalProtocolError, match="does not fit"):
        packet.to_bytes(SIZE)


def test_all_answers_of_a_study_fit_into_packets_of_one_size():
    manifest = Manifest(parse_study_text(read_starter("anonml")))
    script = build_script(manifest.study, manifest.digest)
    size = compute_packet_size(script)
    assert size % PACKET_MULTIPLE == 0
    sizes = set()
    for one in summarise_questions(script):
        mechanism = one.question.mechanism
        assert mechanism is not None
        report = bytes(report_bytes(mechanism.name, mechanism.cardinality))
        answer = AnonMLAnswer(
            study=manifest.digest,
            ticket=bytes(32),
            phase=script.n_phases - 1,
            question=23,
            report=report,
        )
        sizes.add(len(Packet(TOKEN[:TOKEN_BYTES], 0, encode(answer)).to_bytes(size)))
    assert sizes == {size}
