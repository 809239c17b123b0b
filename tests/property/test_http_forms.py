"""Request bodies and signatures with any bytes: a form, or an error with a code.

A form has few spellings.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy
from shoal.errors import RemoteProtocolError
from shoal.messages.base import Record
from shoal.transport.api import (
    Enrolled,
    Enrolment,
    MessagePage,
    Poll,
    Problem,
    SignedManifest,
    from_cbor,
    from_json,
    to_cbor,
    to_json,
)
from shoal.transport.signing import sign_request, verify_request
from tests.support.hostile import hostile

JSON_FORMS = (Enrolment, Enrolled, Poll, Problem)
CBOR_FORMS = (SignedManifest, MessagePage)
ME = Identity.from_seed(bytes(range(32)))

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=80),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
)
fields = st.sampled_from(sorted({name for form in JSON_FORMS for name in form.model_fields}))
near = st.dictionaries(fields, plain, max_size=4).map(json.dumps).map(str.encode)


@hostile()
@given(
    st.binary(max_size=300) | near | plain.map(json.dumps).map(str.encode),
    st.sampled_from(JSON_FORMS),
)
def test_json_body_is_form_or_error(data: bytes, kind: type[Record]) -> None:
    try:
        form = from_json(data, kind)
    except RemoteProtocolError as error:
        assert error.code.startswith("MSG-")
        assert len(str(error)) < 500
    else:
        assert from_json(to_json(form), kind) == form


@hostile()
@given(st.binary(max_size=300), st.sampled_from(CBOR_FORMS))
@example(b"\xa0", MessagePage)
def test_cbor_body_is_form_or_error(data: bytes, kind: type[Record]) -> None:
    try:
        form = from_cbor(data, kind)
    except RemoteProtocolError as error:
        assert error.code.startswith("MSG-")
    else:
        assert to_cbor(form) == data


@given(
    st.sampled_from(("after", "wait_seconds")),
    st.booleans() | st.floats() | st.text(max_size=3) | st.none() | st.integers(max_value=-1),
)
def test_form_accepts_only_whole_numbers_as_integers(name: str, value: Any) -> None:
    with pytest.raises(RemoteProtocolError, match=r"MSG-00[25]"):
        from_json(json.dumps({name: value}).encode(), Poll)


@hostile()
@given(st.data())
def test_request_signature_is_valid_only_for_signed_request(data: st.DataObject) -> None:
    signed = ("POST", "/v1/studies/x/mailbox", b"{}", 1_000_000)
    header = sign_request(ME, *signed, SeededEntropy(1))
    assert verify_request(header, *signed).key == ME.public_key
    at = data.draw(st.integers(0, len(header) - 1))
    other = (
        header[:at]
        + data.draw(st.characters(max_codepoint=255).filter(lambda letter: letter != header[at]))
        + header[at + 1 :]
    )
    with pytest.raises(RemoteProtocolError, match=r"AUTH-00[12]"):
        verify_request(other, *signed)


@hostile()
@given(st.text(max_size=400), st.binary(max_size=50), st.integers(0, 2**53))
def test_made_up_signature_header_is_rejected(header: str, body: bytes, now: int) -> None:
    for given_header in (header, f"Shoal {header}"):
        with pytest.raises(RemoteProtocolError, match=r"AUTH-00[12]"):
            verify_request(given_header, "POST", "/v1/studies", body, now)
