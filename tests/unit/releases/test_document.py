"""``release.json`` is read strictly."""

from __future__ import annotations

import json

import pytest

from shoal.releases.content import ReleaseError
from shoal.releases.document import ReleaseDataFile, ReleaseDocument, make_document
from shoal.study.manifest import RosterMember
from tests.support.releases import NORTH, make_release

DATA = ReleaseDataFile(file="data.csv", sha256="00" * 32, rows=500)
WHOLE = make_document(make_release(), RosterMember("north", NORTH.public_key), DATA).to_bytes()


def test_document_from_bytes_inverts_to_bytes() -> None:
    assert ReleaseDocument.from_bytes(WHOLE).to_bytes() == WHOLE


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"null",
        b"[" * 100_000,
        WHOLE[:-3],
        WHOLE + b"{}",
        WHOLE.replace(b'"simulation": false', b'"simulation": false, "simulation": false'),
        WHOLE.replace(b'"rows": 500', b'"rows": NaN'),
        json.dumps(json.loads(WHOLE) | {"statement": {"epsilon": float("nan")}}).encode(),
        json.dumps(json.loads(WHOLE) | {"statement": {"epsilon": 0}})
        .encode()
        .replace(b'"epsilon": 0', b'"epsilon": 1e999'),
        WHOLE.replace(b'"rows": 500', b'"rows": ' + b"9" * 5000),
        WHOLE.replace(b'"rows": 500', b'"rows": -1'),
        WHOLE.replace(b'"rows": 500', b'"rows": true'),
        WHOLE.replace(b'"rows": 500', b'"rows": 500, "run": "me"'),
        WHOLE.replace(b'"name": "north"', b'"name": "\\ud800"'),
        WHOLE.replace(b'"version": 1', b'"version": 1.5'),
        WHOLE.replace(b'"version": 1', b'"version": 1.0'),
        WHOLE.replace(b'"version": 1', b'"version": true'),
        json.dumps(json.loads(WHOLE) | {"notes": ["x"] * 101}).encode(),
        json.dumps(
            json.loads(WHOLE) | {"counted": {"rows": 1e999, "deviation": 1.0, "shares": [0.5, 0.5]}}
        ).encode(),
        json.dumps(
            json.loads(WHOLE) | {"counted": {"rows": 1.0, "deviation": -1.0, "shares": [0.5, 0.5]}}
        ).encode(),
        json.dumps(
            json.loads(WHOLE) | {"counted": {"rows": 1.0, "deviation": 1.0, "shares": [-0.5, 1.5]}}
        ).encode(),
        json.dumps(json.loads(WHOLE) | {"counted": {"rows": 1.0, "deviation": 1.0}}).encode(),
    ],
)
def test_document_from_bytes_rejects_malformed_documents(data: bytes) -> None:
    assert data != WHOLE
    with pytest.raises(ReleaseError) as caught:
        ReleaseDocument.from_bytes(data)
    assert caught.value.code == "REL-005"


def test_document_rejects_duplicate_keys() -> None:
    with pytest.raises(ReleaseError) as caught:
        ReleaseDocument.from_bytes(b'{"a": 1, "a": 2}')
    assert caught.value.why == "It has a duplicate key."


def test_document_of_newer_version_is_rejected_by_version() -> None:
    with pytest.raises(ReleaseError, match="The version of this release"):
        ReleaseDocument.from_bytes(WHOLE.replace(b'"version": 1', b'"version": 2'))


def test_document_rejects_signers_without_name_or_valid_key() -> None:
    document = ReleaseDocument.from_bytes(WHOLE)
    for signer in (
        {"name": "", "key": NORTH.public_key.hex()},
        {"name": "north", "key": "01" + "00" * 31},
    ):
        with pytest.raises(ReleaseError) as caught:
            _ = document.replace(signer=type(document.signer)(**signer)).member
        assert caught.value.code == "REL-004"
