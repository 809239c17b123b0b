"""Oblivious HTTP (RFC 9458).

Participants seal requests, and the coordinator's gateway opens them. Only the gateway can read a
request, and only its sender can read the response. The relay between them sees the sender's address
and the length; the gateway sees the content and the relay's address. The formats are:

header
    Key identifier (1), KEM X25519, KDF HKDF-SHA256, AEAD AES-128-GCM: 7 bytes, always the same.
encapsulated key
    The ephemeral X25519 key of this request: 32 bytes.
sealed request
    The request and a tag of 16 bytes. Header, key and request are HPKE (RFC 9180) in base mode.
response
    A nonce of 16 bytes, the sealed response, a tag. Its key is derived from a secret that the
    request's HPKE context exports.

Requests without a response (`seal_request`, `Gateway.open_one_way`) use the library's HPKE. It has
no exporter, so requests with responses use the key schedule below, on the library's primitives.
Both have the same format.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from shoal.entropy import Entropy, SystemEntropy
from shoal.errors import RemoteProtocolError

KEY_BYTES = 32
TAG_BYTES = 16
NONCE_BYTES = 16
KEYS_CONTENT_TYPE = "application/ohttp-keys"
"""The content type of key configurations."""

_KEY_ID, _KEM, _KDF, _AEAD = 1, 0x0020, 0x0001, 0x0001
_HEADER = (
    bytes([_KEY_ID]) + _KEM.to_bytes(2, "big") + _KDF.to_bytes(2, "big") + _AEAD.to_bytes(2, "big")
)
REQUEST_OVERHEAD = len(_HEADER) + KEY_BYTES + TAG_BYTES
"""Bytes by which a sealed request is longer than the request."""
RESPONSE_OVERHEAD = NONCE_BYTES + TAG_BYTES

_INFO = b"message/bhttp request\x00" + _HEADER
_RESPONSE = b"message/bhttp response"
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
_KEM_SUITE = b"HPKE-v1KEM" + _HEADER[1:3]
_HPKE_SUITE = b"HPKE-v1HPKE" + _HEADER[1:]
_AEAD_KEY_BYTES, _AEAD_NONCE_BYTES = 16, 12
_ENTROPY = SystemEntropy()


def encode_key_configuration(gateway_key: bytes) -> bytes:
    """Encode a gateway's key as ``application/ohttp-keys``: one configuration after its length.

    Ref: RFC 9458 §3.
    """
    algorithms = _HEADER[3:]
    one = _HEADER[:3] + gateway_key + len(algorithms).to_bytes(2, "big") + algorithms
    return len(one).to_bytes(2, "big") + one


def parse_key_configuration(configuration: bytes) -> bytes:
    """Return the gateway's key in ``application/ohttp-keys``.

    Raise ``CRYPTO-001`` unless it is one configuration with shoal's key identifier and suite.

    Examples
    --------
    >>> parse_key_configuration(encode_key_configuration(bytes(range(32)))) == bytes(range(32))
    True
    """
    key, counted = configuration[5 : 5 + KEY_BYTES], configuration[5 + KEY_BYTES : 7 + KEY_BYTES]
    algorithms = configuration[7 + KEY_BYTES :]
    is_whole = len(configuration) > 7 + KEY_BYTES and len(configuration) == 2 + int.from_bytes(
        configuration[:2], "big"
    )
    if not is_whole or len(algorithms) != int.from_bytes(counted, "big") or len(algorithms) % 4:
        raise _crypto_error(
            f"{len(configuration)} bytes are not one key configuration of a gateway."
        )
    if configuration[2:5] != _HEADER[:3]:
        raise _crypto_error("A gateway's key has another identifier or type than shoal uses.")
    if _HEADER[3:] not in {algorithms[at : at + 4] for at in range(0, len(algorithms), 4)}:
        raise _crypto_error(
            "A gateway does not support HKDF-SHA256 with AES-128-GCM, which shoal uses."
        )
    return key


def seal_request(gateway_key: bytes, request: bytes) -> bytes:
    """Seal a request that has no response."""
    try:
        return _HEADER + _SUITE.encrypt(
            request, X25519PublicKey.from_public_bytes(gateway_key), _INFO
        )
    except ValueError:
        raise _bad_key_error() from None


def encapsulate(
    gateway_key: bytes, request: bytes, entropy: Entropy = _ENTROPY
) -> tuple[bytes, ResponseOpener]:
    """Seal a request; return it with the opener of its response.

    Parameters
    ----------
    gateway_key
        The gateway's X25519 key, 32 bytes.
    request
        A binary HTTP request.
    entropy
        Source of the ephemeral key.

    Examples
    --------
    >>> gateway = Gateway.from_seed(bytes(range(32)))
    >>> sealed, opener = encapsulate(gateway.key, b"request")
    >>> request, sealer = gateway.open(sealed)
    >>> request, opener.open(sealer.seal(b"answer"))
    (b'request', b'answer')
    """
    ephemeral = X25519PrivateKey.from_private_bytes(entropy.bytes(KEY_BYTES))
    public = ephemeral.public_key().public_bytes_raw()
    try:
        shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(gateway_key))
    except ValueError:
        raise _bad_key_error() from None
    key, nonce, secret = _run_key_schedule(shared, public, gateway_key)
    return _HEADER + public + AESGCM(key).encrypt(nonce, request, None), ResponseOpener(
        public, secret
    )


@dataclass(frozen=True)
class ResponseOpener:
    """The keys that open the response to a request; its sender has them."""

    ephemeral: bytes
    secret: bytes = field(repr=False)

    def open(self, response: bytes) -> bytes:
        """Open the gateway's response; raise ``CRYPTO-001`` for any other bytes."""
        key, nonce = _derive_response_keys(self.ephemeral, self.secret, response[:NONCE_BYTES])
        try:
            return AESGCM(key).decrypt(nonce, response[NONCE_BYTES:], None)
        except (InvalidTag, ValueError):
            raise _crypto_error(
                "A gateway's response cannot be opened.",
                "It was altered or truncated, or is the response to another request.",
            ) from None


@dataclass(frozen=True)
class ResponseSealer:
    """The keys that seal the response to a request, once; the gateway has them."""

    ephemeral: bytes
    secret: bytes = field(repr=False)
    entropy: Entropy = field(repr=False)

    def seal(self, response: bytes) -> bytes:
        """Seal a response for the sender of the request."""
        nonce = self.entropy.bytes(NONCE_BYTES)
        key, aead_nonce = _derive_response_keys(self.ephemeral, self.secret, nonce)
        return nonce + AESGCM(key).encrypt(aead_nonce, response, None)


class Gateway:
    """The private key that opens sealed requests.

    Parameters
    ----------
    entropy
        Source of the nonces of responses.

    Attributes
    ----------
    key
        The public key, 32 bytes.
    """

    def __init__(self, private: X25519PrivateKey, entropy: Entropy = _ENTROPY) -> None:
        self._private, self._entropy = private, entropy
        self.key = private.public_key().public_bytes_raw()

    @classmethod
    def from_seed(cls, seed: bytes, entropy: Entropy = _ENTROPY) -> Gateway:
        """Return the gateway with these 32 bytes as private key."""
        return cls(X25519PrivateKey.from_private_bytes(seed), entropy)

    def encode_key_configuration(self) -> bytes:
        """Encode the key as ``application/ohttp-keys``."""
        return encode_key_configuration(self.key)

    def open(self, sealed: bytes) -> tuple[bytes, ResponseSealer]:
        """Open a request; return it with the sealer of its response; ``CRYPTO-001`` on failure."""
        ephemeral, box = _split_sealed(sealed)
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(ephemeral))
            key, nonce, secret = _run_key_schedule(shared, ephemeral, self.key)
            request = AESGCM(key).decrypt(nonce, box, None)
        except (InvalidTag, ValueError):
            raise _unopenable_error() from None
        return request, ResponseSealer(ephemeral, secret, self._entropy)

    def open_one_way(self, sealed: bytes) -> bytes:
        """Open a request that has no response; raise ``CRYPTO-001`` on failure."""
        _split_sealed(sealed)
        try:
            return _SUITE.decrypt(sealed[len(_HEADER) :], self._private, _INFO)
        except (InvalidTag, ValueError):
            raise _unopenable_error() from None


def _split_sealed(sealed: bytes) -> tuple[bytes, bytes]:
    """Split a sealed request into ephemeral key and ciphertext."""
    if len(sealed) < REQUEST_OVERHEAD:
        raise _crypto_error(f"{len(sealed)} bytes are too few for a sealed request.")
    if not sealed.startswith(_HEADER):
        raise _crypto_error(
            "A sealed request is for another key or another suite than this gateway has."
        )
    at = len(_HEADER) + KEY_BYTES
    return sealed[len(_HEADER) : at], sealed[at:]


def _run_key_schedule(
    shared: bytes, ephemeral: bytes, gateway_key: bytes
) -> tuple[bytes, bytes, bytes]:
    """Return key and nonce of the request, and the exported secret for the response.

    Ref: RFC 9180 §4.1, §5.1 and §5.3 in base mode; RFC 9458 §4.4.
    """
    prk = _extract(b"", _KEM_SUITE, b"eae_prk", shared)
    kem_secret = _expand(prk, _KEM_SUITE, b"shared_secret", ephemeral + gateway_key, 32)
    secret = _extract(kem_secret, _HPKE_SUITE, b"secret", b"")
    exporter = _expand(secret, _HPKE_SUITE, b"exp", _CONTEXT, 32)
    return (
        _expand(secret, _HPKE_SUITE, b"key", _CONTEXT, _AEAD_KEY_BYTES),
        _expand(secret, _HPKE_SUITE, b"base_nonce", _CONTEXT, _AEAD_NONCE_BYTES),
        _expand(exporter, _HPKE_SUITE, b"sec", _RESPONSE, NONCE_BYTES),
    )


def _derive_response_keys(ephemeral: bytes, secret: bytes, nonce: bytes) -> tuple[bytes, bytes]:
    """Return key and nonce of a response.

    Ref: RFC 9458 §4.4.
    """
    prk = hmac.digest(ephemeral + nonce, secret, "sha256")
    return hmac.digest(prk, b"key\x01", "sha256")[:_AEAD_KEY_BYTES], hmac.digest(
        prk, b"nonce\x01", "sha256"
    )[:_AEAD_NONCE_BYTES]


def _extract(salt: bytes, suite: bytes, label: bytes, secret: bytes) -> bytes:
    return hmac.digest(salt, suite + label + secret, "sha256")


def _expand(prk: bytes, suite: bytes, label: bytes, info: bytes, n: int) -> bytes:
    """Return up to the 32 bytes of one HKDF block."""
    return hmac.digest(prk, n.to_bytes(2, "big") + suite + label + info + b"\x01", "sha256")[:n]


_CONTEXT = (
    b"\x00"
    + _extract(b"", _HPKE_SUITE, b"psk_id_hash", b"")
    + _extract(b"", _HPKE_SUITE, b"info_hash", _INFO)
)
"""The key schedule's context: base mode, no pre-shared key, and the purpose of the request."""


def _bad_key_error() -> RemoteProtocolError:
    return _crypto_error(
        "A gateway's key is not a valid X25519 public key.",
        "Everyone could open a request that is sealed to it.",
    )


def _unopenable_error() -> RemoteProtocolError:
    return _crypto_error(
        "A sealed request cannot be opened.", "It was altered, or sealed for another gateway."
    )


def _crypto_error(what: str, why: str | None = None) -> RemoteProtocolError:
    return RemoteProtocolError("CRYPTO-001", what, why=why)
