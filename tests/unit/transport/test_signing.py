"""A signature is valid for one key, path, body and time only."""

import pytest

from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.transport.signing import (
    FRESH_SECONDS,
    NONCE_BYTES,
    sign_broadcast,
    sign_manifest,
    sign_request,
    verify_broadcast,
    verify_manifest,
    verify_request,
)

ALICE, BOB = (Identity.from_seed(bytes([i]) * 32) for i in (1, 2))
NOW = 1_900_000_000_000
TARGET, BODY = "/v1/studies/" + "7f" * 32 + "/messages", b"body"
HEADER = sign_request(ALICE, "POST", TARGET, BODY, NOW, SeededEntropy(1))


def refusal(
    header: str | None,
    method: str = "POST",
    target: str = TARGET,
    body: bytes = BODY,
    now: int = NOW,
) -> str:
    with pytest.raises(RemoteProtocolError) as error:
        verify_request(header, method, target, body, now)
    return error.value.code


def test_verify_request_returns_key_of_signer() -> None:
    signed = verify_request(HEADER, "POST", TARGET, BODY, NOW + FRESH_SECONDS * 1000)
    assert (signed.key, signed.time, len(signed.nonce)) == (ALICE.public_key, NOW, NONCE_BYTES)


def test_sign_request_uses_new_nonce_each_time() -> None:
    entropy = SeededEntropy(1)
    assert len({sign_request(ALICE, "POST", TARGET, BODY, NOW, entropy) for _ in range(20)}) == 20


@pytest.mark.parametrize("header", [None, "", "Bearer abc", "shoal 00 1 00 00"])
def test_verify_request_rejects_missing_signature(header: str | None) -> None:
    assert refusal(header) == "AUTH-001"


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("GET", TARGET, BODY),
        ("POST", TARGET.replace("7f", "7e"), BODY),
        ("POST", TARGET + "?after=1", BODY),
        ("POST", TARGET, b"bodY"),
    ],
    ids=["method", "study", "query", "body"],
)
def test_signature_is_bound_to_method_path_and_body(method: str, target: str, body: bytes) -> None:
    assert refusal(HEADER, method, target, body) == "AUTH-002"


@pytest.mark.parametrize("part", range(1, 5), ids=["key", "time", "nonce", "signature"])
def test_verify_request_rejects_changed_header_parts(part: int) -> None:
    ours, theirs = (
        HEADER.split(),
        sign_request(BOB, "POST", TARGET, BODY, NOW + 1, SeededEntropy(2)).split(),
    )
    assert refusal(" ".join([*ours[:part], theirs[part], *ours[part + 1 :]])) == "AUTH-002"


@pytest.mark.parametrize(
    "broken",
    [
        HEADER + "0",
        HEADER[:-1],
        HEADER.upper(),
        HEADER + " x",
        HEADER.replace(" ", "  "),
        HEADER + "\n",
    ],
)
def test_verify_request_rejects_malformed_header(broken: str) -> None:
    assert refusal(broken) in ("AUTH-001", "AUTH-002")


@pytest.mark.parametrize("seconds", [FRESH_SECONDS + 1, -FRESH_SECONDS - 1, 10**9])
def test_verify_request_rejects_other_time(seconds: int) -> None:
    assert refusal(HEADER, now=NOW + seconds * 1000) == "AUTH-003"


def test_verify_request_rejects_key_of_small_order() -> None:
    weak = f"Shoal {'01' + '00' * 31} {NOW} {'00' * NONCE_BYTES} {'01' + '00' * 63}"
    assert refusal(weak) == "AUTH-002"


def test_verify_manifest_accepts_only_signature_of_coordinator() -> None:
    signature = sign_manifest(ALICE, bytes(32))
    verify_manifest(ALICE.public_key, bytes(32), signature)
    for key, digest, mark in (
        (BOB.public_key, bytes(32), signature),
        (ALICE.public_key, b"\x01" * 32, signature),
        (bytes(32), bytes(32), signature),
    ):
        with pytest.raises(RemoteProtocolError) as error:
            verify_manifest(key, digest, mark)
        assert error.value.code == "AUTH-004"


def test_signed_request_is_not_a_manifest_signature() -> None:
    with pytest.raises(RemoteProtocolError):
        verify_manifest(ALICE.public_key, bytes(32), bytes.fromhex(HEADER.split()[4]))


def test_broadcast_signature_is_bound_to_key_study_number_and_payload() -> None:
    study = bytes(32)
    signature = sign_broadcast(ALICE, study, 1, b"message")
    verify_broadcast(ALICE.public_key, study, 1, b"message", signature)
    for key, other, number, payload, signed in (
        (BOB.public_key, study, 1, b"message", signature),
        (bytes(32), study, 1, b"message", signature),
        (ALICE.public_key, bytes([1]) * 32, 1, b"message", signature),
        (ALICE.public_key, study, 2, b"message", signature),
        (ALICE.public_key, study, 1, b"messagf", signature),
        (ALICE.public_key, study, 1, b"message", sign_manifest(ALICE, study)),
        (ALICE.public_key, study, 1, b"message", None),
    ):
        with pytest.raises(RemoteProtocolError, match="AUTH-004"):
            verify_broadcast(key, other, number, payload, signed)
