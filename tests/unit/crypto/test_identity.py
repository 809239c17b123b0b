"""Identities and rosters: signatures, digests, and invalid keys."""

from __future__ import annotations

import pytest

from shoal.crypto.identity import Identity, MemberError, Roster, is_usable_key, member_error
from shoal.errors import RemoteProtocolError, SpecError
from tests.support.secagg import flips

IDENTITIES = [Identity.from_seed(bytes([i]) * 32) for i in range(3)]
KEYS = tuple(identity.public_key for identity in IDENTITIES)
ROSTER = Roster(("north", "south", "west"), KEYS)

FIELD = 2**255 - 19
ORDER_EIGHT = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
SMALL_ORDER = [0, 1, FIELD - 1, ORDER_EIGHT, FIELD - ORDER_EIGHT]
NOT_REDUCED = [FIELD, FIELD + 1, 2**255 - 1]


def test_find_position_returns_position_of_name() -> None:
    assert len(ROSTER) == 3
    assert [ROSTER.find_position(name) for name in ROSTER.names] == [0, 1, 2]
    with pytest.raises(RemoteProtocolError) as caught:
        ROSTER.find_position("east")
    assert caught.value.code == "PROTO-003"


def test_signature_is_valid_for_one_member_and_message() -> None:
    signature = IDENTITIES[1].sign(b"text")
    ROSTER.check_signature(1, signature, b"text")
    for position, text in ((0, b"text"), (2, b"text"), (1, b"other"), (1, b"")):
        with pytest.raises(MemberError) as caught:
            ROSTER.check_signature(position, signature, text)
        assert (caught.value.code, caught.value.member) == ("CRYPTO-001", position)


def test_check_signature_rejects_changed_bit() -> None:
    signature = IDENTITIES[0].sign(b"text")
    for changed in (*flips(signature), signature[:-1], signature + b"\0", b""):
        with pytest.raises(MemberError) as caught:
            ROSTER.check_signature(0, changed, b"text")
        assert caught.value.member == 0


@pytest.mark.parametrize("position", [-1, 3])
def test_check_signature_rejects_position_outside_roster(position: int) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        ROSTER.check_signature(position, IDENTITIES[2].sign(b"text"), b"text")
    assert caught.value.code == "PROTO-003"


def test_digest_identifies_roster() -> None:
    rosters = [
        ROSTER,
        Roster(("south", "north", "west"), KEYS),
        Roster(("north", "south", "west"), (KEYS[1], KEYS[0], KEYS[2])),
        Roster(("north", "south"), KEYS[:2]),
        Roster(("northsouth",), KEYS[:1]),
        Roster((), ()),
    ]
    assert len({roster.digest for roster in rosters}) == len(rosters)
    assert all(len(roster.digest) == 32 for roster in rosters)
    assert Roster(ROSTER.names, ROSTER.keys).digest == ROSTER.digest


@pytest.mark.parametrize("y", SMALL_ORDER + NOT_REDUCED)
@pytest.mark.parametrize("sign", [0, 1])
def test_roster_rejects_invalid_keys(y: int, sign: int) -> None:
    key = ((y | sign << 255) & (2**256 - 1)).to_bytes(32, "little")
    assert not is_usable_key(key)
    with pytest.raises(SpecError) as caught:
        Roster(("north", "south"), (KEYS[0], key))
    assert (caught.value.code, "south" in caught.value.what) == ("MANIFEST-002", True)


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (("north", "north"), KEYS[:2]),
        (("north", "south"), (KEYS[0], KEYS[0])),
        (("north", "south"), KEYS[:1]),
        (("north",), (KEYS[0][:31],)),
    ],
)
def test_roster_rejects_repeated_names_and_keys(
    names: tuple[str, ...], keys: tuple[bytes, ...]
) -> None:
    with pytest.raises(SpecError) as caught:
        Roster(names, keys)
    assert caught.value.code == "MANIFEST-002"


def test_repr_does_not_show_key() -> None:
    assert repr(IDENTITIES[0]) == "Identity()"


def test_member_error_has_member() -> None:
    error = member_error(4, "It does not fit.", "Because.")
    assert (error.member, error.code, error.why) == (4, "CRYPTO-001", "Because.")
    assert isinstance(error, RemoteProtocolError)
