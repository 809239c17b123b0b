"""Oblivious HTTP: the RFC's example, the library's HPKE as oracle, and altered messages."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from hypothesis import given
from hypothesis import strategies as st

from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.transport.ohttp import (
    REQUEST_OVERHEAD,
    RESPONSE_OVERHEAD,
    Gateway,
    ResponseOpener,
    ResponseSealer,
    encapsulate,
    encode_key_configuration,
    parse_key_configuration,
    seal_request,
)

# RFC 9458, appendix A.
PRIVATE = bytes.fromhex("3c168975674b2fa8e465970b79c8dcf09f1c741626480bd4c6162fc5b6a98e1a")
CONFIGURATION = bytes.fromhex(
    "01002031e1f05a740102115220e9af918f738674aec95f54db6e04eb705aae8e79815500080001000100010003"
)
REQUEST = bytes.fromhex("00034745540568747470730b6578616d706c652e636f6d012f")
EPHEMERAL = bytes.fromhex("bc51d5e930bda26589890ac7032f70ad12e4ecb37abb1b65b1256c9c48999c73")
SEALED = bytes.fromhex(
    "010020000100014b28f881333e7c164ffc499ad9796f877f4e1051ee6d31bad19dec96c208b472"
    "6374e469135906992e1268c594d2a10c695d858c40a026e7965e7d86b83dd440b2c0185204b4d63525"
)
SECRET = bytes.fromhex("62d87a6ba569ee81014c2641f52bea36")
NONCE = bytes.fromhex("c789e7151fcba46158ca84b04464910d")
ANSWER = bytes.fromhex("0140c8")
SEALED_ANSWER = bytes.fromhex(
    "c789e7151fcba46158ca84b04464910d86f9013e404feea014e7be4a441f234f857fbd"
)

HEADER = SEALED[:7]
INFO = b"message/bhttp request\x00" + HEADER
GATEWAY = Gateway.from_seed(PRIVATE)
SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
SMALL_ORDER = [
    bytes(32),
    bytes([1]) + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
]
"""X25519 keys that agree with every other key on zero."""


class Given(SeededEntropy):
    """Draws what it was given."""

    def __init__(self, draw: bytes) -> None:
        super().__init__(0)
        self.draw = draw

    def bytes(self, n: int) -> bytes:
        assert n == len(self.draw)
        return self.draw


def flipped(data: bytes) -> list[bytes]:
    return [
        data[:i] + bytes([data[i] ^ bit]) + data[i + 1 :]
        for i in range(len(data))
        for bit in (1, 128)
    ]


def test_encapsulation_matches_rfc_example() -> None:
    gateway = Gateway.from_seed(PRIVATE, Given(NONCE))
    assert gateway.key == CONFIGURATION[3:35]
    sealed, opener = encapsulate(gateway.key, REQUEST, Given(EPHEMERAL))
    assert sealed == SEALED
    request, sealer = gateway.open(sealed)
    assert (request, opener.secret, sealer.secret) == (REQUEST, SECRET, SECRET)
    assert sealer.seal(ANSWER) == SEALED_ANSWER
    assert opener.open(SEALED_ANSWER) == ANSWER
    assert gateway.open_one_way(SEALED) == REQUEST


def test_key_schedule_matches_library_hpke() -> None:
    private = X25519PrivateKey.from_private_bytes(PRIVATE)
    assert SUITE.decrypt(SEALED[7:], private, INFO) == REQUEST
    for sealed in (encapsulate(GATEWAY.key, b"ours")[0], seal_request(GATEWAY.key, b"ours")):
        assert SUITE.decrypt(sealed[7:], private, INFO) == b"ours"
    theirs = HEADER + SUITE.encrypt(b"theirs", private.public_key(), INFO)
    assert GATEWAY.open(theirs)[0] == GATEWAY.open_one_way(theirs) == b"theirs"
    with pytest.raises(InvalidTag):
        SUITE.decrypt(SEALED[7:], private, INFO + b"\x00")


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=600), st.binary(max_size=600))
def test_sealed_request_and_response_open(seed: bytes, request: bytes, answer: bytes) -> None:
    gateway = Gateway.from_seed(seed)
    sealed, opener = encapsulate(gateway.key, request)
    found, sealer = gateway.open(sealed)
    assert (
        found
        == gateway.open_one_way(sealed)
        == gateway.open_one_way(seal_request(gateway.key, request))
        == request
    )
    assert opener.open(sealer.seal(answer)) == answer
    assert len(sealed) == len(seal_request(gateway.key, request)) == len(request) + REQUEST_OVERHEAD
    assert len(sealer.seal(answer)) == len(answer) + RESPONSE_OVERHEAD


def test_sealing_twice_gives_different_bytes() -> None:
    sealed = {encapsulate(GATEWAY.key, b"same")[0] for _ in range(20)} | {
        seal_request(GATEWAY.key, b"same") for _ in range(20)
    }
    assert len({one[7:39] for one in sealed}) == 40
    _, sealer = GATEWAY.open(sealed.pop())
    assert len({sealer.seal(b"same")[:16] for _ in range(20)}) == 20


@pytest.mark.parametrize("open_it", [GATEWAY.open, GATEWAY.open_one_way])
def test_altered_request_does_not_open(open_it: Any) -> None:
    for bad in [
        *flipped(SEALED),
        *(SEALED[:n] for n in range(len(SEALED))),
        SEALED + b"\x00",
        SEALED[:7] + SEALED,
    ]:
        with pytest.raises(RemoteProtocolError, match="CRYPTO-001"):
            open_it(bad)


def test_altered_response_does_not_open() -> None:
    opener = ResponseOpener(SEALED[7:39], SECRET)
    for bad in [
        *flipped(SEALED_ANSWER),
        *(SEALED_ANSWER[:n] for n in range(len(SEALED_ANSWER))),
        SEALED_ANSWER + b"\x00",
    ]:
        with pytest.raises(RemoteProtocolError, match="CRYPTO-001"):
            opener.open(bad)


def test_response_opens_only_for_its_request() -> None:
    mine, my_opener = encapsulate(GATEWAY.key, b"same")
    theirs, their_opener = encapsulate(GATEWAY.key, b"same")
    answer = GATEWAY.open(mine)[1].seal(b"for me")
    assert my_opener.open(answer) == b"for me"
    with pytest.raises(RemoteProtocolError, match="CRYPTO-001"):
        their_opener.open(answer)
    with pytest.raises(RemoteProtocolError, match="CRYPTO-001"):
        my_opener.open(GATEWAY.open(theirs)[1].seal(b"for them"))


def test_other_gateway_cannot_open_request() -> None:
    other = Gateway.from_seed(EPHEMERAL)
    for open_it in (other.open, other.open_one_way):
        with pytest.raises(RemoteProtocolError, match="another gateway"):
            open_it(SEALED)


@pytest.mark.parametrize("key", SMALL_ORDER)
def test_keys_with_zero_shared_secret_are_rejected(key: bytes) -> None:
    for act in (lambda: encapsulate(key, REQUEST), lambda: seal_request(key, REQUEST)):
        with pytest.raises(RemoteProtocolError, match="CRYPTO-001"):
            act()
    for open_it in (GATEWAY.open, GATEWAY.open_one_way):
        with pytest.raises(RemoteProtocolError, match="CRYPTO-001"):
            open_it(HEADER + key + SEALED[39:])


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33)])
def test_key_of_wrong_length_is_rejected(key: bytes) -> None:
    for act in (lambda: encapsulate(key, REQUEST), lambda: seal_request(key, REQUEST)):
        with pytest.raises(RemoteProtocolError, match="CRYPTO-001"):
            act()


def test_key_configuration_round_trip() -> None:
    assert GATEWAY.encode_key_configuration() == encode_key_configuration(GATEWAY.key)
    assert GATEWAY.encode_key_configuration().hex() == f"0029010020{GATEWAY.key.hex()}000400010001"
    assert parse_key_configuration(GATEWAY.encode_key_configuration()) == GATEWAY.key
    # The RFC's offers a second AEAD too.
    assert (
        parse_key_configuration(len(CONFIGURATION).to_bytes(2, "big") + CONFIGURATION)
        == GATEWAY.key
    )


def sized(configuration: bytes) -> bytes:
    return len(configuration).to_bytes(2, "big") + configuration


BAD_CONFIGURATIONS = {
    "nothing": b"",
    "no length": CONFIGURATION,
    "cut short": sized(CONFIGURATION)[:-1],
    "more than its length": sized(CONFIGURATION) + b"\x00",
    "two": sized(CONFIGURATION) * 2,
    "another identifier": sized(b"\x02" + CONFIGURATION[1:]),
    "another kind of key": sized(b"\x01\x00\x10" + CONFIGURATION[3:]),
    "no algorithms": sized(CONFIGURATION[:35] + bytes(2)),
    "other algorithms": sized(CONFIGURATION[:35] + bytes.fromhex("000400010003")),
    "half an algorithm": sized(CONFIGURATION[:35] + bytes.fromhex("0006000100010001")),
    "an algorithm across two": sized(CONFIGURATION[:35] + bytes.fromhex("00080000000100010000")),
}


@pytest.mark.parametrize("name", BAD_CONFIGURATIONS)
def test_parse_key_configuration_rejects_unusable_configuration(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match="CRYPTO-001"):
        parse_key_configuration(BAD_CONFIGURATIONS[name])


def test_repr_contains_no_secrets() -> None:
    sealed, opener = encapsulate(GATEWAY.key, REQUEST)
    sealer = GATEWAY.open(sealed)[1]
    assert isinstance(sealer, ResponseSealer)
    assert opener.secret.hex() not in repr(opener) + repr(sealer) and repr(
        opener.secret
    ) not in repr(opener) + repr(sealer)
