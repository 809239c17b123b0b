"""Oblivious HTTP (RFC 9458): a request that only the gateway can read, and the answer to it that only who asked can read.

The relay between the two sees from where it comes and how long it is; the gateway sees what it asks, and the relay's address.

==================  ==============================================================================================================
header              key identifier (1), KEM X25519, KDF HKDF-SHA256, AEAD AES-128-GCM: 7 bytes, always the same
encapsulated key    the ephemeral X25519 key of this request: 32 bytes
sealed request      the request and a tag of 16 bytes. Everything so far is HPKE (RFC 9180) in its base mode
answer              a nonce of 16 bytes, the sealed answer, a tag. Its key comes from a secret that the request's HPKE exports
==================  ==============================================================================================================

What is sent one way (`seal`, `Gateway.open_only`) uses the library's HPKE. It has no exporter; so requests that have answers use the key
schedule below, on the library's primitives. Both have the same form.
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
KEYS = "application/ohttp-keys"
"""The content type of key configurations."""

_KEY_ID, _KEM, _KDF, _AEAD = 1, 0x0020, 0x0001, 0x0001
_HEADER = bytes([_KEY_ID]) + _KEM.to_bytes(2, "big") + _KDF.to_bytes(2, "big") + _AEAD.to_bytes(2, "big")
REQUEST_OVERHEAD = len(_HEADER) + KEY_BYTES + TAG_BYTES
"""Bytes by which a sealed request is longer than the request."""
ANSWER_OVERHEAD = NONCE_BYTES + TAG_BYTES

_INFO = b"message/bhttp request\x00" + _HEADER
_RESPONSE = b"message/bhttp response"
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
_KEM_SUITE = b"HPKE-v1KEM" + _HEADER[1:3]
_HPKE_SUITE = b"HPKE-v1HPKE" + _HEADER[1:]
_AEAD_KEY_BYTES, _AEAD_NONCE_BYTES = 16, 12
_ENTROPY = SystemEntropy()


def configuration_of(gateway_key: bytes) -> bytes:
    """A gateway's key as ``application/ohttp-keys``: one configuration, with its length before it.

    Ref: RFC 9458 §3.
    """
    algorithms = _HEADER[3:]
    one = _HEADER[:3] + gateway_key + len(algorithms).to_bytes(2, "big") + algorithms
    return len(one).to_bytes(2, "big") + one


def key_of(configuration: bytes) -> bytes:
    """The gateway's key in ``application/ohttp-keys``: of one configuration, under the one key identifier, for the one suite.

    Examples
    --------
    >>> key_of(configuration_of(bytes(range(32)))) == bytes(range(32))
    True
    """
    key, counted = configuration[5 : 5 + KEY_BYTES], configuration[5 + KEY_BYTES : 7 + KEY_BYTES]
    algorithms = configuration[7 + KEY_BYTES :]
    is_whole = len(configuration) > 7 + KEY_BYTES and len(configuration) == 2 + int.from_bytes(configuration[:2], "big")
    if not is_whole or len(algorithms) != int.from_bytes(counted, "big") or len(algorithms) % 4:
        raise _refused(f"{len(configuration)} bytes are not one key configuration of a gateway.")
    if configuration[2:5] != _HEADER[:3]:
        raise _refused("A gateway has a key under another identifier, or of another kind, than shoal uses.")
    if _HEADER[3:] not in {algorithms[at : at + 4] for at in range(0, len(algorithms), 4)}:
        raise _refused("A gateway does not take HKDF-SHA256 with AES-128-GCM, which shoal uses.")
    return key


def seal(gateway_key: bytes, request: bytes) -> bytes:
    """A sealed request to which no answer is read."""
    try:
        return _HEADER + _SUITE.encrypt(request, X25519PublicKey.from_public_bytes(gateway_key), _INFO)
    except ValueError:
        raise _bad_key() from None


def encapsulate(gateway_key: bytes, request: bytes, entropy: Entropy = _ENTROPY) -> tuple[bytes, Opener]:
    """A sealed request, and what opens the answer to it.

    Parameters
    ----------
    gateway_key
        The gateway's X25519 key, 32 bytes.
    request
        A request of binary HTTP.
    entropy
        Where the ephemeral key comes from.

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
        raise _bad_key() from None
    key, nonce, secret = _schedule(shared, public, gateway_key)
    return _HEADER + public + AESGCM(key).encrypt(nonce, request, None), Opener(public, secret)


@dataclass(frozen=True)
class Opener:
    """What opens the answer to a request: kept by who has sealed it."""

    ephemeral: bytes
    secret: bytes = field(repr=False)

    def open(self, answer: bytes) -> bytes:
        """What the gateway has answered; ``CRYPTO-001`` for anything else."""
        key, nonce = _answer_keys(self.ephemeral, self.secret, answer[:NONCE_BYTES])
        try:
            return AESGCM(key).decrypt(nonce, answer[NONCE_BYTES:], None)
        except (InvalidTag, ValueError):
            raise _refused("A gateway's answer does not open.", "It was altered, cut short, or is the answer to another request.") from None


@dataclass(frozen=True)
class Sealer:
    """What seals the answer to a request, once: kept by the gateway until it has one."""

    ephemeral: bytes
    secret: bytes = field(repr=False)
    entropy: Entropy = field(repr=False)

    def seal(self, answer: bytes) -> bytes:
        """The answer for who has sealed the request."""
        nonce = self.entropy.bytes(NONCE_BYTES)
        key, aead_nonce = _answer_keys(self.ephemeral, self.secret, nonce)
        return nonce + AESGCM(key).encrypt(aead_nonce, answer, None)


class Gateway:
    """Who can open sealed requests.

    Parameters
    ----------
    private
        The X25519 key.
    entropy
        Where nonces of answers come from.

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
        """The gateway whose private key is these 32 bytes."""
        return cls(X25519PrivateKey.from_private_bytes(seed), entropy)

    def configuration(self) -> bytes:
        """The key as ``application/ohttp-keys``."""
        return configuration_of(self.key)

    def open(self, sealed: bytes) -> tuple[bytes, Sealer]:
        """A request, and what seals the answer to it; ``CRYPTO-001`` where it does not open."""
        ephemeral, box = _parts(sealed)
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(ephemeral))
            key, nonce, secret = _schedule(shared, ephemeral, self.key)
            request = AESGCM(key).decrypt(nonce, box, None)
        except (InvalidTag, ValueError):
            raise _closed() from None
        return request, Sealer(ephemeral, secret, self._entropy)

    def open_only(self, sealed: bytes) -> bytes:
        """A request that gets no answer; ``CRYPTO-001`` where it does not open."""
        _parts(sealed)
        try:
            return _SUITE.decrypt(sealed[len(_HEADER) :], self._private, _INFO)
        except (InvalidTag, ValueError):
            raise _closed() from None


def _parts(sealed: bytes) -> tuple[bytes, bytes]:
    """The ephemeral key and the box of a sealed request."""
    if len(sealed) < REQUEST_OVERHEAD:
        raise _refused(f"{len(sealed)} bytes are too few for a sealed request.")
    if not sealed.startswith(_HEADER):
        raise _refused("A sealed request is for another key, or of another suite, than this gateway has.")
    at = len(_HEADER) + KEY_BYTES
    return sealed[len(_HEADER) : at], sealed[at:]


def _schedule(shared: bytes, ephemeral: bytes, gateway_key: bytes) -> tuple[bytes, bytes, bytes]:
    """Key and nonce of the request, and the secret that its HPKE context exports for the answer.

    Ref: RFC 9180 §4.1, §5.1 and §5.3 in base mode; RFC 9458 §4.4.
    """
    prk = _extract(b"", _KEM_SUITE, b"eae_prk", shared)
    of_kem = _expand(prk, _KEM_SUITE, b"shared_secret", ephemeral + gateway_key, 32)
    secret = _extract(of_kem, _HPKE_SUITE, b"secret", b"")
    exporter = _expand(secret, _HPKE_SUITE, b"exp", _CONTEXT, 32)
    return (
        _expand(secret, _HPKE_SUITE, b"key", _CONTEXT, _AEAD_KEY_BYTES),
        _expand(secret, _HPKE_SUITE, b"base_nonce", _CONTEXT, _AEAD_NONCE_BYTES),
        _expand(exporter, _HPKE_SUITE, b"sec", _RESPONSE, NONCE_BYTES),
    )


def _answer_keys(ephemeral: bytes, secret: bytes, nonce: bytes) -> tuple[bytes, bytes]:
    """Key and nonce of an answer.

    Ref: RFC 9458 §4.4.
    """
    prk = hmac.digest(ephemeral + nonce, secret, "sha256")
    return hmac.digest(prk, b"key\x01", "sha256")[:_AEAD_KEY_BYTES], hmac.digest(prk, b"nonce\x01", "sha256")[:_AEAD_NONCE_BYTES]


def _extract(salt: bytes, suite: bytes, label: bytes, secret: bytes) -> bytes:
    return hmac.digest(salt, suite + label + secret, "sha256")


def _expand(prk: bytes, suite: bytes, label: bytes, info: bytes, n: int) -> bytes:
    """At most the 32 bytes of one block of HKDF."""
    return hmac.digest(prk, n.to_bytes(2, "big") + suite + label + info + b"\x01", "sha256")[:n]


_CONTEXT = b"\x00" + _extract(b"", _HPKE_SUITE, b"psk_id_hash", b"") + _extract(b"", _HPKE_SUITE, b"info_hash", _INFO)
"""The key schedule's context: base mode, no shared key, and what the request is for."""


def _bad_key() -> RemoteProtocolError:
    return _refused("A gateway's key is not one that an X25519 key pair has.", "A request that is sealed to it would be open to everyone.")


def _closed() -> RemoteProtocolError:
    return _refused("A sealed request does not open.", "It was altered, or sealed for another gateway.")


def _refused(what: str, why: str | None = None) -> RemoteProtocolError:
    return RemoteProtocolError("CRYPTO-001", what, why=why)
