"""A signature is of one member for one text; a roster's digest is its own; keys that nobody has are refused."""

from __future__ import annotations

import pytest

from shoal.crypto.roster import Identity, MemberError, Roster, is_usable, misfit
from shoal.errors import RemoteProtocolError, SpecError
from sum_cases import flips

IDENTITIES = [Identity.from_seed(bytes([i]) * 32) for i in range(3)]
KEYS = tuple(identity.public for identity in IDENTITIES)
ROSTER = Roster(("north", "south", "west"), KEYS)

FIELD = 2**255 - 19
ORDER_EIGHT = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
SMALL_ORDER = [0, 1, FIELD - 1, ORDER_EIGHT, FIELD - ORDER_EIGHT]
NOT_REDUCED = [FIELD, FIELD + 1, 2**255 - 1]


def test_a_member_is_found_by_its_name() -> None:
    assert len(ROSTER) == 3
    assert [ROSTER.position(name) for name in ROSTER.names] == [0, 1, 2]
    with pytest.raises(RemoteProtocolError) as caught:
        ROSTER.position("east")
    assert caught.value.code == "PROTO-003"


def test_a_signature_is_of_one_member_for_one_text() -> None:
    signature = IDENTITIES[1].sign(b"text")
    ROSTER.check(1, signature, b"text")
    for position, text in ((0, b"text"), (2, b"text"), (1, b"other"), (1, b"")):
        with pytest.raises(MemberError) as caught:
            ROSTER.check(position, signature, text)
        assert (caught.value.code, caught.value.member) == ("CRYPTO-001", position)


def test_a_signature_with_one_bit_changed_is_refused() -> None:
    signature = IDENTITIES[0].sign(b"text")
    for changed in (*flips(signature), signature[:-1], signature + b"\0", b""):
        with pytest.raises(MemberError) as caught:
            ROSTER.check(0, changed, b"text")
        assert caught.value.member == 0


@pytest.mark.parametrize("position", [-1, 3])
def test_a_position_that_nobody_has(position: int) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        ROSTER.check(position, IDENTITIES[2].sign(b"text"), b"text")
    assert caught.value.code == "PROTO-003"


def test_the_digest_tells_rosters_apart() -> None:
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
def test_keys_that_no_key_pair_has_are_refused(y: int, sign: int) -> None:
    key = ((y | sign << 255) & (2**256 - 1)).to_bytes(32, "little")
    assert not is_usable(key)
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
def test_rosters_that_cannot_be(names: tuple[str, ...], keys: tuple[bytes, ...]) -> None:
    with pytest.raises(SpecError) as caught:
        Roster(names, keys)
    assert caught.value.code == "MANIFEST-002"


def test_an_identity_does_not_show_its_key() -> None:
    assert repr(IDENTITIES[0]) == "Identity()"


def test_an_error_about_a_member_names_it() -> None:
    error = misfit(4, "It does not fit.", "Because.")
    assert (error.member, error.code, error.why) == (4, "CRYPTO-001", "Because.")
    assert isinstance(error, RemoteProtocolError)
