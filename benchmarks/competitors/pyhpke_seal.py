"""pyhpke's sealing and opening of 2 KiB for an X25519 key, a second.

`benchmarks.speed.tokens.ohttp` runs it in a separate environment.
"""

import json
import os

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pyhpke import AEADId, CipherSuite, KDFId, KEMId, KEMKey
from timing import measure_rate

N = 300
SUITE = CipherSuite.new(KEMId.DHKEM_X25519_HKDF_SHA256, KDFId.HKDF_SHA256, AEADId.AES128_GCM)
INFO = b"message/bhttp request\x00" + bytes.fromhex("01002000010001")

private = X25519PrivateKey.generate()
ours, theirs = (
    KEMKey.from_pyca_cryptography_key(private),
    KEMKey.from_pyca_cryptography_key(private.public_key()),
)
message = os.urandom(2048)


def seal():
    key, sender = SUITE.create_sender_context(theirs, info=INFO)
    return key, sender.seal(message), sender.export(b"message/bhttp response", 16)


def unseal(key, sealed):
    recipient = SUITE.create_recipient_context(key, ours, info=INFO)
    return recipient.open(sealed), recipient.export(b"message/bhttp response", 16)


key, sealed, secret = seal()
assert unseal(key, sealed) == (message, secret)
print(
    json.dumps(
        {
            "seal": measure_rate(lambda: [seal() for _ in range(N)], N),
            "open": measure_rate(lambda: [unseal(key, sealed) for _ in range(N)], N),
        }
    )
)
