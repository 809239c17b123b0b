"""Credentials and tokens on one core: registration, minting, and verification.

Registration is measured on both sides, and verification one by one and in batches.
``verify_per_s_batched_strict`` is of 512 tokens of 64 people in four contexts, two batches of 256,
with every point of every token checked to be in the subgroup of prime order.
``verify_per_s_flooded`` is the same with three of four tokens bound to another message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.measure import Measure, rate
from shoal.crypto.credentials.issuance import Credential, Issuer, Registration
from shoal.crypto.credentials.tokens import BATCH_SIZE, PresentedToken, TokenVerifier
from shoal.entropy import SystemEntropy

N_PEOPLE, N_CONTEXTS = 64, 4
MESSAGE = bytes(200)
SCOPE = bytes(32)


def measures() -> Iterator[Measure]:
    """Yield registration first, then tokens."""
    entropy = SystemEntropy()
    issuer = Issuer.from_seed(entropy.bytes(32))
    registration = Registration.draw(entropy)
    commitment = registration.make_commitment(issuer.key, SCOPE)
    issued = issuer.issue(SCOPE, commitment, 0, entropy)

    def register() -> Credential:
        registration.make_commitment(issuer.key, SCOPE)
        return registration.accept(issuer.key, SCOPE, issued)

    yield _ms("register_ms", rate(register, 1))
    yield _ms("issue_ms", rate(lambda: issuer.issue(SCOPE, commitment, 0, entropy), 1))
    credential = register()
    yield _ms("mint_ms", rate(lambda: credential.mint(b"context", MESSAGE, entropy), 1), 3)

    many = _mint_tokens(issuer, 2 * BATCH_SIZE, entropy)
    yield Measure("tokens", "token_bytes", len(many[0].token), "B", "lower")
    verifier = TokenVerifier(issuer.key, SCOPE)
    yield _per_s("verify_per_s_single", rate(lambda: verifier.verify(many[0]), 1))
    yield _per_s(
        "verify_per_s_batched_strict",
        rate(lambda: verifier.verify_many(many), len(many), seconds=5),
        1000,
    )
    flooded = [
        one if index % 4 == 0 else replace(one, message=b"another")
        for index, one in enumerate(many)
    ]
    yield _per_s("verify_per_s_flooded", rate(lambda: verifier.verify_many(flooded), len(flooded)))


def _mint_tokens(issuer: Issuer, n: int, entropy: SystemEntropy) -> list[PresentedToken]:
    """Return tokens of registered people, over several contexts."""
    people = []
    for _ in range(N_PEOPLE):
        registration = Registration.draw(entropy)
        issued = issuer.issue(SCOPE, registration.make_commitment(issuer.key, SCOPE), 0, entropy)
        people.append(registration.accept(issuer.key, SCOPE, issued))
    made = []
    for index in range(n):
        context = b"context %d" % (index % N_CONTEXTS)
        made.append(
            PresentedToken(
                people[index % N_PEOPLE].mint(context, MESSAGE, entropy), context, MESSAGE, 0
            )
        )
    return made


def _ms(name: str, per_s: float, target: float | None = None) -> Measure:
    return Measure("tokens", name, 1000 / per_s, "ms", "lower", target)


def _per_s(name: str, value: float, target: float | None = None) -> Measure:
    return Measure("tokens", name, value, "1/s", "higher", target)
