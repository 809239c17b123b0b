"""Bodies of the HTTP API are read strictly."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import RemoteProtocolError
from shoal.messages import codec
from shoal.transport.api import (
    MAX_CONTROL_BYTES,
    MAX_VALUES,
    Enrolled,
    Enrolment,
    MessagePage,
    Poll,
    Problem,
    QueuedMessage,
    SignedManifest,
    from_cbor,
    from_json,
    to_cbor,
    to_json,
)


@pytest.mark.parametrize(
    "form",
    [Enrolment(), Enrolment(invitation="code", ticket="0f" * 32), Poll(after=7, wait_seconds=3)],
)
def test_json_round_trip(form: Enrolment | Poll) -> None:
    assert from_json(to_json(form), type(form)) == form


@pytest.mark.parametrize(
    "form",
    [
        MessagePage(letters=(QueuedMessage(number=3, payload=b"x"),), status="done"),
        SignedManifest(manifest=b"m", key=bytes(32), signature=bytes(64)),
    ],
)
def test_cbor_round_trip(form: MessagePage | SignedManifest) -> None:
    assert from_cbor(to_cbor(form), type(form)) == form


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"after": false}', "MSG-005"),
        (b'{"after": 1.0}', "MSG-005"),
        (b'{"after": "1"}', "MSG-005"),
        (b'{"after": -1}', "MSG-005"),
        (b'{"wait_seconds": 31}', "MSG-005"),
        (b'{"after": 1, "more": 2}', "MSG-005"),
        (b'{"after": 1, "after": 2}', "MSG-002"),
        (b'{"after": NaN}', "MSG-002"),
        (b"[]", "MSG-005"),
        (b"\xff", "MSG-002"),
        (b"", "MSG-002"),
        (b"[" * 10_000, "MSG-002"),
        (b" " * (MAX_CONTROL_BYTES + 1), "MSG-001"),
    ],
)
def test_from_json_rejects_invalid_poll(body: bytes, code: str) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        from_json(body, Poll)
    assert error.value.code == code


@pytest.mark.parametrize(
    "plain",
    [{"letters": [], "status": "open", "more": 1}, {"letters": [{"number": 0, "payload": b""}]}, 7],
)
def test_from_cbor_rejects_invalid_message_page(plain: object) -> None:
    with pytest.raises(RemoteProtocolError) as error:
        from_cbor(codec.dumps(plain), MessagePage)
    assert error.value.code == "MSG-005"


@given(st.binary(max_size=200))
def test_decoding_any_bytes_returns_body_or_protocol_error(data: bytes) -> None:
    for read, kind in ((from_json, Enrolment), (from_cbor, MessagePage)):
        try:
            read(data, kind)  # type: ignore[type-var]
        except RemoteProtocolError as error:
            assert error.code.startswith("MSG-")


def test_problem_contains_what_why_and_fix() -> None:
    problem = json.loads(
        to_json(
            Problem.from_error(
                RemoteProtocolError("AUTH-003", "What.", why="Why.", fix="Fix."), 401
            )
        )
    )
    assert problem == {
        "type": "about:blank",
        "title": "What.",
        "status": 401,
        "code": "AUTH-003",
        "detail": "Why.",
        "fix": "Fix.",
    }


@pytest.mark.parametrize("kind", [MessagePage, SignedManifest])
@pytest.mark.parametrize("filling", [b"\x00", b"\x80", b"\xa0"])
def test_from_cbor_counts_values_before_decoding(
    kind: type[MessagePage] | type[SignedManifest], filling: bytes
) -> None:
    data = b"\x9a" + MAX_VALUES.to_bytes(4, "big") + filling * MAX_VALUES
    with pytest.raises(RemoteProtocolError, match="MSG-001"):
        from_cbor(data, kind)


@pytest.mark.parametrize(
    "changes",
    [
        *({"name": name} for name in ("", "a\nb", "x" * 1000, "*", "aggregator", "?", "?1", 7)),
        *({"position": position} for position in (-1, 1 << 31, True, 1.0, "1")),
    ],
)
def test_enrolled_rejects_reserved_name_and_invalid_position(changes: dict[str, object]) -> None:
    good = {"name": "holder-1", "position": 1}
    assert from_json(json.dumps(good).encode(), Enrolled) == Enrolled(name="holder-1", position=1)
    with pytest.raises(RemoteProtocolError, match="MSG-005"):
        from_json(json.dumps({**good, **changes}).encode(), Enrolled)
