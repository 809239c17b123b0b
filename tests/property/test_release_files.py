"""Hostile releases: whatever the bytes of its files, even signed ones, a release or a `ReleaseError` comes out."""

from __future__ import annotations

import copy
import hashlib
import json
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile import hostile
from release_cases import NORTH, NOT_MISSING, PAPER, release_of, resign
from shoal.errors import ShoalError
from shoal.releases.artefact import DOCUMENT, MANIFEST, SIGNATURE, read, write
from shoal.releases.content import ReleaseError

NAMES = [DOCUMENT, MANIFEST, SIGNATURE, "data.csv"]
JUNK = [None, True, 0, -1, 10**30, 0.5, -1e300, "", "x", "\ud800", "\x1b[2J", "00" * 32, [], {}, [[]], [None], {"name": "x"}]


@cache
def files_of(is_paper: bool) -> dict[str, bytes]:
    """The files of a good release."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "it"
        write(path, release_of(*((PAPER, NOT_MISSING) if is_paper else ()), n_rows=40), "north", NORTH, inferred=False)
        return {name: (path / name).read_bytes() for name in NAMES}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


def lay(directory: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (directory / name).write_bytes(content)


def believed(directory: Path, files: dict[str, bytes]) -> bool:
    lay(directory, files)
    try:
        read(directory)
    except ReleaseError as error:
        assert error.code.startswith("REL-") and "Traceback" not in str(error)
        return False
    return True


@hostile(200)
@given(data=st.data())
def test_no_change_of_bytes_goes_unnoticed(data: st.DataObject, place: Path) -> None:
    files = dict(files_of(data.draw(st.booleans())))
    name = data.draw(st.sampled_from(NAMES))
    whole = files[name]
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 40)))
    files[name] = whole[:start] + data.draw(st.binary(max_size=40)) + whole[end:]
    assert believed(place, files) is (files[name] == whole)


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(spot for key, part in inner for spot in spots(part, (*path, key)))]


@hostile(100)
@given(data=st.data())
def test_a_signed_document_with_any_junk_in_it_is_read_or_refused(data: st.DataObject, place: Path) -> None:
    files = files_of(data.draw(st.booleans()))
    lay(place, files)
    document = json.loads(files[DOCUMENT])
    *inner, last = data.draw(st.sampled_from(spots(document)[1:]))
    changed: Any = copy.deepcopy(document)
    part = changed
    for key in inner:
        part = part[key]
    part[last] = data.draw(st.sampled_from(JUNK))
    resign(place, changed)
    with suppress(ReleaseError):
        # A model's weight, a charged count or the figures of a regression may be anything that fits.
        assert read(place).release.statement.epsilon <= 1


@hostile(100)
@given(data=st.data())
def test_signed_rows_with_any_bytes_in_them_fit_or_are_refused(data: st.DataObject, place: Path) -> None:
    files = dict(files_of(False))
    whole = files["data.csv"]
    start = data.draw(st.integers(0, len(whole)))
    spoiled = whole[:start] + data.draw(st.one_of(st.binary(max_size=20), st.text(max_size=9).map(str.encode))) + whole[start:]
    lay(place, files | {"data.csv": spoiled})
    document = json.loads(files[DOCUMENT])
    document["data"]["sha256"] = hashlib.sha256(spoiled).hexdigest()
    resign(place, document)
    with suppress(ReleaseError):
        assert len(read(place).release.dataset) == document["data"]["rows"]


@hostile(60)
@given(rubbish=st.binary(max_size=300))
def test_signed_rubbish_is_refused(rubbish: bytes, place: Path) -> None:
    lay(place, files_of(False))
    resign(place, rubbish)
    with pytest.raises(ShoalError):
        read(place)


@hostile(60)
@given(rubbish=st.binary(max_size=300))
def test_a_parquet_file_of_rubbish_is_refused(rubbish: bytes, place: Path) -> None:
    lay(place, files_of(False))
    document = json.loads(files_of(False)[DOCUMENT])
    document["data"] |= {"file": "data.parquet", "sha256": hashlib.sha256(rubbish).hexdigest()}
    (place / "data.parquet").write_bytes(rubbish)
    resign(place, document)
    with pytest.raises(ReleaseError):
        read(place)
