"""``release.json`` is read strictly, whatever stands in it."""

from __future__ import annotations

import json

import pytest

from release_cases import NORTH, release_of
from shoal.releases.content import ReleaseError
from shoal.releases.document import Data, Document, describe
from shoal.study.manifest import Member

DATA = Data(file="data.csv", sha256="00" * 32, rows=500)
WHOLE = describe(release_of(), Member("north", NORTH.public), DATA).to_bytes()


def test_a_document_comes_back() -> None:
    assert Document.from_bytes(WHOLE).to_bytes() == WHOLE


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
        json.dumps(json.loads(WHOLE) | {"statement": {"epsilon": 0}}).encode().replace(b'"epsilon": 0', b'"epsilon": 1e999'),
        WHOLE.replace(b'"rows": 500', b'"rows": ' + b"9" * 5000),
        WHOLE.replace(b'"rows": 500', b'"rows": -1'),
        WHOLE.replace(b'"rows": 500', b'"rows": true'),
        WHOLE.replace(b'"rows": 500', b'"rows": 500, "run": "me"'),
        WHOLE.replace(b'"name": "north"', b'"name": "\\ud800"'),
        WHOLE.replace(b'"version": 1', b'"version": 1.5'),
        WHOLE.replace(b'"version": 1', b'"version": 1.0'),
        WHOLE.replace(b'"version": 1', b'"version": true'),
        json.dumps(json.loads(WHOLE) | {"notes": ["x"] * 101}).encode(),
        json.dumps(json.loads(WHOLE) | {"counted": {"rows": 1e999, "deviation": 1.0, "shares": [0.5, 0.5]}}).encode(),
        json.dumps(json.loads(WHOLE) | {"counted": {"rows": 1.0, "deviation": -1.0, "shares": [0.5, 0.5]}}).encode(),
        json.dumps(json.loads(WHOLE) | {"counted": {"rows": 1.0, "deviation": 1.0, "shares": [-0.5, 1.5]}}).encode(),
        json.dumps(json.loads(WHOLE) | {"counted": {"rows": 1.0, "deviation": 1.0}}).encode(),
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    assert data != WHOLE
    with pytest.raises(ReleaseError) as caught:
        Document.from_bytes(data)
    assert caught.value.code == "REL-005"


def test_a_key_that_is_there_twice_is_named() -> None:
    with pytest.raises(ReleaseError) as caught:
        Document.from_bytes(b'{"a": 1, "a": 2}')
    assert caught.value.why == "A key is there twice."


def test_a_newer_format_asks_for_a_newer_shoal() -> None:
    with pytest.raises(ReleaseError, match="version of the format"):
        Document.from_bytes(WHOLE.replace(b'"version": 1', b'"version": 2'))


def test_a_signer_without_a_name_or_a_key_is_none() -> None:
    document = Document.from_bytes(WHOLE)
    for signer in ({"name": "", "key": NORTH.public.hex()}, {"name": "north", "key": "01" + "00" * 31}):
        with pytest.raises(ReleaseError) as caught:
            _ = document.replace(signer=type(document.signer)(**signer)).member
        assert caught.value.code == "REL-004"
