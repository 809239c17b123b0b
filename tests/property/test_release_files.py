"""Hostile releases: any bytes, even signed ones, give a release or a `ReleaseError`."""

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

from shoal.errors import ShoalError
from shoal.releases.artifact import (
    DOCUMENT,
    MANIFEST,
    SIGNATURE,
    read_signed_release,
    write_signed_release,
)
from shoal.releases.content import ReleaseError
from tests.support.hostile import hostile
from tests.support.releases import NORTH, NOT_MISSING, PAPER, make_release, resign

NAMES = [DOCUMENT, MANIFEST, SIGNATURE, "data.csv"]
JUNK = [
    None,
    True,
    0,
    -1,
    10**30,
    0.5,
    -1e300,
    "",
    "x",
    "\ud800",
    "\x1b[2J",
    "00" * 32,
    [],
    {},
    [[]],
    [None],
    {"name": "x"},
]


@cache
def make_files(is_paper: bool) -> dict[str, bytes]:
    """Return the files of a good release."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "it"
        write_signed_release(
            path,
            make_release(*((PAPER, NOT_MISSING) if is_paper else ()), n_rows=40),
            "north",
            NORTH,
            is_inferred=False,
        )
        return {name: (path / name).read_bytes() for name in NAMES}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


def write_files(directory: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (directory / name).write_bytes(content)


def is_accepted(directory: Path, files: dict[str, bytes]) -> bool:
    write_files(directory, files)
    try:
        read_signed_release(directory)
    except ReleaseError as error:
        assert error.code.startswith("REL-") and "Traceback" not in str(error)
        return False
    return True


@hostile(200)
@given(data=st.data())
def test_release_with_changed_bytes_is_rejected(data: st.DataObject, workspace: Path) -> None:
    files = dict(make_files(data.draw(st.booleans())))
    name = data.draw(st.sampled_from(NAMES))
    whole = files[name]
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 40)))
    files[name] = whole[:start] + data.draw(st.binary(max_size=40)) + whole[end:]
    assert is_accepted(workspace, files) is (files[name] == whole)


def list_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Yield the path of every value in a document."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(spot for key, part in inner for spot in list_paths(part, (*path, key)))]


@hostile(100)
@given(data=st.data())
def test_signed_document_with_junk_is_read_or_rejected(
    data: st.DataObject, workspace: Path
) -> None:
    files = make_files(data.draw(st.booleans()))
    write_files(workspace, files)
    document = json.loads(files[DOCUMENT])
    *inner, last = data.draw(st.sampled_from(list_paths(document)[1:]))
    changed: Any = copy.deepcopy(document)
    part = changed
    for key in inner:
        part = part[key]
    part[last] = data.draw(st.sampled_from(JUNK))
    resign(workspace, changed)
    with suppress(ReleaseError):
        # A model's weight, a charged count or the figures of a regression may be any value of the
        # right type.
        assert read_signed_release(workspace).release.statement.epsilon <= 1


@hostile(100)
@given(data=st.data())
def test_signed_rows_with_any_bytes_fit_or_are_rejected(
    data: st.DataObject, workspace: Path
) -> None:
    files = dict(make_files(False))
    whole = files["data.csv"]
    start = data.draw(st.integers(0, len(whole)))
    spoiled = (
        whole[:start]
        + data.draw(st.one_of(st.binary(max_size=20), st.text(max_size=9).map(str.encode)))
        + whole[start:]
    )
    write_files(workspace, files | {"data.csv": spoiled})
    document = json.loads(files[DOCUMENT])
    document["data"]["sha256"] = hashlib.sha256(spoiled).hexdigest()
    resign(workspace, document)
    with suppress(ReleaseError):
        assert len(read_signed_release(workspace).release.dataset) == document["data"]["rows"]


@hostile(60)
@given(rubbish=st.binary(max_size=300))
def test_signed_rubbish_is_rejected(rubbish: bytes, workspace: Path) -> None:
    write_files(workspace, make_files(False))
    resign(workspace, rubbish)
    with pytest.raises(ShoalError):
        read_signed_release(workspace)


@hostile(60)
@given(rubbish=st.binary(max_size=300))
def test_rubbish_parquet_file_is_rejected(rubbish: bytes, workspace: Path) -> None:
    write_files(workspace, make_files(False))
    document = json.loads(make_files(False)[DOCUMENT])
    document["data"] |= {"file": "data.parquet", "sha256": hashlib.sha256(rubbish).hexdigest()}
    (workspace / "data.parquet").write_bytes(rubbish)
    resign(workspace, document)
    with pytest.raises(ReleaseError):
        read_signed_release(workspace)
