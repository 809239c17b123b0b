"""The manifest: one encoding, one digest, and valid keys only."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from shoal.errors import ShoalError, SpecError
from shoal.messages import codec
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest, RosterMember
from shoal.study.schedule import Schedule
from shoal.study.starters import STARTER_PROTOCOLS, read_starter

STUDY = parse_study_text(read_starter("sdq"))
ROSTER = tuple(RosterMember(f"hospital {i}", bytes([i + 9]) * 32) for i in range(10))
FULL = Manifest(
    STUDY, bytes([0x93]) + bytes(95), bytes([7]) * 32, ROSTER, "https://relay.example.org/r"
)


@pytest.mark.parametrize(
    "manifest",
    [
        FULL,
        replace(FULL, schedule=Schedule(1_893_456_000_000, 86_400_000)),
        *(Manifest(parse_study_text(read_starter(protocol))) for protocol in STARTER_PROTOCOLS),
    ],
)
def test_from_bytes_inverts_to_bytes(manifest: Manifest) -> None:
    again = Manifest.from_bytes(manifest.to_bytes())
    assert (
        again == manifest
        and again.digest == manifest.digest
        and again.to_bytes() == manifest.to_bytes()
    )


def test_digest_hashes_domain_and_content() -> None:
    assert FULL.digest == hashlib.sha256(b"shoal manifest 1\0" + FULL.to_bytes()).digest()
    assert FULL.short_digest == "-".join(FULL.digest.hex()[i : i + 4] for i in (0, 4, 8))


def test_digest_ignores_comments_key_order_and_number_format() -> None:
    text = read_starter("anonml")
    head, _, tail = text.partition("[privacy]")
    start, _, rest = head.partition("[label]")
    keys = [line for line in start.splitlines() if "=" in line]
    other = (
        "\n".join(reversed(keys))
        + "\n[privacy]"
        + tail.replace("2.0", "2").replace("#", "# more")
        + "\n[label]"
        + rest
    )
    other = other.replace(
        'north = ["NO"], centre = ["DE", "FR", "PL"]', 'centre = ["DE", "FR", "PL"], north = ["NO"]'
    )
    other = other.replace("2031-01-31T12:00:00Z", "2031-01-31T13:00:00+01:00").replace(
        "range = [0, 200]", "range = [-0.0, 2e2]"
    )
    assert other != text
    assert Manifest(parse_study_text(other)).digest == Manifest(parse_study_text(text)).digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("epsilon = 2.0", "epsilon = 2.1"),
        ("bins = [40, 60, 80]", "bins = [40, 60, 81]"),
        ('title = "Who', 'title = "who'),
        ('"PL", "other"]', '"other", "PL"]'),
        ("2031-01-31T12", "2031-01-31T13"),
        ("minimum = 2000", "minimum = 2001"),
    ],
)
def test_digest_changes_with_every_setting(old: str, new: str) -> None:
    text = read_starter("anonml")
    assert (
        Manifest(parse_study_text(text.replace(old, new, 1))).digest
        != Manifest(parse_study_text(text)).digest
    )


def test_digest_changes_with_feature_order_and_manifest_keys() -> None:
    swapped = STUDY.model_copy(update={"feature": STUDY.feature[::-1]})
    others = [
        Manifest(swapped, FULL.issuer_key, FULL.gateway_key, ROSTER, FULL.relay),
        replace(FULL, issuer_key=None),
        replace(FULL, gateway_key=bytes([8]) * 32),
        replace(FULL, roster=ROSTER[::-1]),
        replace(FULL, roster=()),
        replace(FULL, relay="https://relay.example.org/s"),
        replace(FULL, schedule=Schedule(0, 1_000)),
        replace(FULL, schedule=Schedule(1, 1_000)),
        replace(FULL, schedule=Schedule(0, 1_001)),
    ]
    assert len({manifest.digest for manifest in [FULL, *others]}) == 1 + len(others)


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer_key": b"short"},
        {"issuer_key": "text"},
        {"issuer_key": bytes(96)},
        {"issuer_key": bytes([0xC0]) + bytes(95)},
        {"gateway_key": bytes(32)},
        {"gateway_key": bytes(31)},
        {"roster": ROSTER[:9]},
        {"roster": (*ROSTER[:9], ROSTER[0])},
        {"roster": (*ROSTER[:9], RosterMember("other", ROSTER[0].key))},
        {"relay": "http://relay.example.org"},
        {"relay": "https://"},
        {"relay": "https://me@relay.example.org"},
        {"relay": "https://relay.example.org?x=1"},
        {"relay": "https://relay.example.org/#x"},
        {"relay": "https://relay.example.org:99999"},
        {"relay": "https://[::1"},
        {"relay": "ftp://relay.example.org"},
        {"relay": "https://relay.example.org/" + "x" * 500},
        {"relay": "https://relay.example.org/\n"},
        {"relay": 7},
    ],
)
def test_manifest_rejects_unusable_keys_rosters_and_addresses(changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as error:
        replace(FULL, **changes)
    assert error.value.code == "MANIFEST-002"


@pytest.mark.parametrize(
    "relay",
    ["http://127.0.0.1:8700", "http://localhost", "http://[::1]:80/x", "https://a.example:443/r"],
)
def test_manifest_accepts_loopback_relays(relay: str) -> None:
    assert replace(FULL, relay=relay).relay == relay


@pytest.mark.parametrize(
    "relay", ["http://abc.onion/r", "https://abc.onion", "https://a.b.ONION.:8800"]
)
def test_manifest_rejects_onion_service_as_relay(relay: str) -> None:
    with pytest.raises(SpecError, match=r"MANIFEST-002.*is an onion service") as error:
        replace(FULL, relay=relay)
    assert "--via tor" in (error.value.fix or "")


def test_study_without_secure_sum_rejects_a_roster() -> None:
    with pytest.raises(SpecError) as error:
        Manifest(parse_study_text(read_starter("anonml")), roster=ROSTER)
    assert error.value.code == "MANIFEST-002"


P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P


def double_y(y: int) -> int:
    """Return the y coordinate of twice a point of Ed25519."""
    x2 = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    return (y * y + x2) * pow(1 - D * x2 * y * y, -1, P) % P


ORDER_8 = [
    int.from_bytes(bytes.fromhex(text), "little")
    for text in (
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    )
]


def test_points_of_small_order_have_the_stated_order() -> None:
    assert (
        [double_y(y) for y in ORDER_8] == [0, 0] and double_y(0) == P - 1 and double_y(P - 1) == 1
    )


@pytest.mark.parametrize("y", [0, 1, P - 1, P, P + 1, 2**255 - 1, *ORDER_8])
@pytest.mark.parametrize("sign", [0, 1])
def test_roster_rejects_keys_of_small_order_and_noncanonical_form(y: int, sign: int) -> None:
    with pytest.raises(SpecError) as error:
        RosterMember("a", (y | sign << 255).to_bytes(32, "little"))
    assert error.value.code == "MANIFEST-002"


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("", bytes([9]) * 32),
        ("a\nb", bytes([9]) * 32),
        (7, bytes([9]) * 32),
        ("a", "x"),
        ("a", b"x"),
    ],
)
def test_roster_rejects_members_without_name_or_key(name: Any, key: Any) -> None:
    with pytest.raises(SpecError) as error:
        RosterMember(name, key)
    assert error.value.code == "MANIFEST-002"


@pytest.mark.parametrize("name", ["*", "aggregator", "?", "?stranger"])
def test_roster_rejects_reserved_names(name: str) -> None:
    with pytest.raises(SpecError, match="protocols reserve this one") as error:
        RosterMember(name, ROSTER[0].key)
    assert error.value.code == "MANIFEST-002"


def make_content() -> dict[str, Any]:
    plain = codec.loads(FULL.to_bytes())
    assert isinstance(plain, dict)
    return dict(plain)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"version": 2},
        {"version": True},
        {"study": 7},
        {"study": {}},
        {"extra": 1},
        {"roster": 7},
        {"roster": [["a"]]},
        {"roster": [["a", 7]] * 10},
        {"issuer_key": "x"},
        {"relay": b"x"},
    ],
)
def test_from_bytes_rejects_content_that_is_not_a_manifest(change: dict[str, Any]) -> None:
    with pytest.raises(ShoalError):
        Manifest.from_bytes(codec.dumps({**make_content(), **change}))


def test_from_bytes_rejects_noncanonical_encodings() -> None:
    data = FULL.to_bytes()
    study = dict(make_content()["study"])
    without_default = codec.dumps(
        {
            **make_content(),
            "study": {key: value for key, value in study.items() if key != "variant"},
        }
    )
    whole = codec.dumps(
        {**make_content(), "study": {**study, "privacy": {**study["privacy"], "epsilon": 1}}}
    )
    late = {**study["participation"], "closes": "2031-01-31T13:00:00+01:00"}
    other_zone = codec.dumps({**make_content(), "study": {**study, "participation": late}})
    for other in (b"", data[:-1], data + b"\0", without_default, whole, other_zone):
        with pytest.raises(SpecError) as error:
            Manifest.from_bytes(other)
        assert error.value.code == "MANIFEST-001"
    with pytest.raises(ShoalError):
        Manifest.from_bytes(
            codec.dumps(
                {**make_content(), "study": {**study, "participation": {**late, "closes": "soon"}}}
            )
        )
    for moment in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:00-14:00"):
        with pytest.raises(SpecError, match="years 1 to 9999"):
            Manifest.from_bytes(
                codec.dumps(
                    {
                        **make_content(),
                        "study": {**study, "participation": {**late, "closes": moment}},
                    }
                )
            )


def test_manifest_without_schedule_is_encoded_as_before_schedules() -> None:
    """Manifests that coordinators and participants stored earlier keep their digest."""
    content = codec.loads(FULL.to_bytes())
    assert isinstance(content, dict) and "schedule" not in content
    assert Manifest.from_bytes(FULL.to_bytes()).schedule is None


@pytest.mark.parametrize(
    ("schedule", "code"),
    [
        (None, "MANIFEST-001"),
        ([0, 1], "MANIFEST-002"),
        ({"opens": 0}, "MANIFEST-002"),
        ({"opens": 0, "window": 0}, "MANIFEST-002"),
        ({"opens": 0, "window": 1, "more": 2}, "MANIFEST-002"),
    ],
)
def test_from_bytes_rejects_other_schedule(schedule: Any, code: str) -> None:
    content = codec.loads(FULL.to_bytes())
    assert isinstance(content, dict)
    with pytest.raises(SpecError, match=code):
        Manifest.from_bytes(codec.dumps({**content, "schedule": schedule}))
