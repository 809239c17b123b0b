"""A signature holds for one key, route, body and time, and for nothing else."""

import pytest

from shoal.crypto.roster import Identity
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.transport.signing import FRESH_SECONDS, NONCE_BYTES, sign, sign_published, verify, verify_published

ALICE, BOB = (Identity.from_seed(bytes([i]) * 32) for i in (1, 2))
NOW = 1_900_000_000_000
TARGET, BODY = "/v1/studies/" + "7f" * 32 + "/messages", b"body"
HEADER = sign(ALICE, "POST", TARGET, BODY, NOW, SeededEntropy(1))


def refusal(header: str | None, method: str = "POST", target: str = TARGET, body: bytes = BODY, now: int = NOW) -> str:
    with pytest.raises(RemoteProtocolError) as error:
        verify(header, method, target, body, now)
    return error.value.code


def test_a_request_is_its_senders() -> None:
    signed = verify(HEADER, "POST", TARGET, BODY, NOW + FRESH_SECONDS * 1000)
    assert (signed.key, signed.time, len(signed.nonce)) == (ALICE.public, NOW, NONCE_BYTES)


def test_no_two_requests_have_the_same_nonce() -> None:
    entropy = SeededEntropy(1)
    assert len({sign(ALICE, "POST", TARGET, BODY, NOW, entropy) for _ in range(20)}) == 20


@pytest.mark.parametrize("header", [None, "", "Bearer abc", "shoal 00 1 00 00"])
def test_a_request_without_a_signature(header: str | None) -> None:
    assert refusal(header) == "AUTH-001"


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [("GET", TARGET, BODY), ("POST", TARGET.replace("7f", "7e"), BODY), ("POST", TARGET + "?after=1", BODY), ("POST", TARGET, b"bodY")],
    ids=["method", "study", "query", "body"],
)
def test_a_signature_is_bound(method: str, target: str, body: bytes) -> None:
    assert refusal(HEADER, method, target, body) == "AUTH-002"


@pytest.mark.parametrize("part", range(1, 5), ids=["key", "time", "nonce", "signature"])
def test_no_part_of_it_can_be_exchanged(part: int) -> None:
    ours, theirs = HEADER.split(), sign(BOB, "POST", TARGET, BODY, NOW + 1, SeededEntropy(2)).split()
    assert refusal(" ".join([*ours[:part], theirs[part], *ours[part + 1 :]])) == "AUTH-002"


@pytest.mark.parametrize("broken", [HEADER + "0", HEADER[:-1], HEADER.upper(), HEADER + " x", HEADER.replace(" ", "  "), HEADER + "\n"])
def test_it_has_one_form(broken: str) -> None:
    assert refusal(broken) in ("AUTH-001", "AUTH-002")


@pytest.mark.parametrize("seconds", [FRESH_SECONDS + 1, -FRESH_SECONDS - 1, 10**9])
def test_a_request_of_another_time(seconds: int) -> None:
    assert refusal(HEADER, now=NOW + seconds * 1000) == "AUTH-003"


def test_a_key_of_small_order_signs_nothing() -> None:
    weak = f"Shoal {'01' + '00' * 31} {NOW} {'00' * NONCE_BYTES} {'01' + '00' * 63}"
    assert refusal(weak) == "AUTH-002"


def test_a_published_manifest_is_its_coordinators() -> None:
    signature = sign_published(ALICE, bytes(32))
    verify_published(ALICE.public, bytes(32), signature)
    for key, digest, mark in (
        (BOB.public, bytes(32), signature),
        (ALICE.public, b"\x01" * 32, signature),
        (bytes(32), bytes(32), signature),
    ):
        with pytest.raises(RemoteProtocolError) as error:
            verify_published(key, digest, mark)
        assert error.value.code == "AUTH-004"


def test_a_request_is_not_a_signature_under_a_manifest() -> None:
    with pytest.raises(RemoteProtocolError):
        verify_published(ALICE.public, bytes(32), bytes.fromhex(HEADER.split()[4]))
