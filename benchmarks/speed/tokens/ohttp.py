"""Oblivious HTTP: sealed requests of 2 KiB a second, made and opened, with competitors.

The secret for the answer is included. The library's HPKE cannot export such a secret, and so does
less; pyhpke can. ``one way`` is what packets use: the library's.
"""

from __future__ import annotations

from collections.abc import Iterator

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from benchmarks.competitors.environments import HERE, make_environment, run_script
from benchmarks.measure import Measure, rate
from shoal.entropy import SystemEntropy
from shoal.transport import ohttp
from shoal.transport.packets import open_packet, seal_packet

SIZE = 2048
N = 300
STUDY = "ab" * 32


def measures() -> Iterator[Measure]:
    """Yield sealing, then opening."""
    entropy = SystemEntropy()
    seed, message = entropy.bytes(32), entropy.bytes(SIZE)
    gateway, private = ohttp.Gateway.from_seed(seed), X25519PrivateKey.from_private_bytes(seed)
    suite, public, info = (
        Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM),
        private.public_key(),
        b"x" * 29,
    )
    sealed, packet = (
        ohttp.encapsulate(gateway.key, message)[0],
        seal_packet(gateway.key, STUDY, message),
    )
    box = suite.encrypt(message, public, info)
    pyhpke = run_script(make_environment("pyhpke", "pyhpke"), HERE / "pyhpke_seal.py")
    made = rate(lambda: [ohttp.encapsulate(gateway.key, message) for _ in range(N)], N)
    opened = rate(lambda: [gateway.open(sealed) for _ in range(N)], N)
    library = {
        "encapsulate": rate(lambda: [suite.encrypt(message, public, info) for _ in range(N)], N),
        "decapsulate": rate(lambda: [suite.decrypt(box, private, info) for _ in range(N)], N),
    }
    for what, ours, theirs in (
        ("encapsulate", made, pyhpke["seal"]),
        ("decapsulate", opened, pyhpke["open"]),
    ):
        yield Measure(
            "tokens", f"ohttp_{what}_per_s", ours, "1/s", "higher", None, "pyhpke", ours / theirs
        )
        yield Measure(
            "tokens",
            f"ohttp_{what}_vs_library",
            ours / library[what],
            "x",
            "higher",
            None,
            "cryptography's HPKE",
            ours / library[what],
        )
    one_way = rate(lambda: [seal_packet(gateway.key, STUDY, message) for _ in range(N)], N)
    yield Measure("tokens", "ohttp_seal_packet_per_s", one_way, "1/s", "higher")
    yield Measure(
        "tokens",
        "ohttp_open_packet_per_s",
        rate(lambda: [open_packet(gateway, STUDY, packet) for _ in range(N)], N),
        "1/s",
        "higher",
    )
    yield Measure("tokens", "ohttp_overhead_bytes", len(packet) - SIZE, "bytes", "lower")
