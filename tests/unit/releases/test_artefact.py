"""Releases on disk: written whole or not at all, and each kind of fault named by a code of its own."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from release_cases import NORTH, NOT_MISSING, NUMBER, PAPER, SOUTH, SUMS, release_of, resign
from shoal.errors import ShoalError, StoreError, UsageError
from shoal.names import shown
from shoal.releases.artefact import DOCUMENT, MANIFEST, MAX_DOCUMENT, SIGNATURE, read, write
from shoal.releases.content import Release, ReleaseError
from shoal.releases.data_files import Kind, to_bytes
from shoal.study.manifest import Manifest, Member

KEYS = [NORTH.public]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write(tmp_path / "it", release_of(), "north", NORTH, inferred=False)
    return tmp_path / "it"


def document_of(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / DOCUMENT).read_bytes())
    return content


def refused(directory: Path, keys: list[bytes] | None = None) -> ReleaseError:
    with pytest.raises(ReleaseError) as caught:
        read(directory, keys)
    assert caught.value.exit_code == 7 and caught.value.fix
    return caught.value


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("edits", [(), (SUMS,), (NUMBER,), (PAPER, NOT_MISSING), (PAPER, NOT_MISSING, NUMBER)])
def test_what_is_read_is_what_was_written(edits: tuple[tuple[str, str], ...], kind: Kind, tmp_path: Path) -> None:
    release = release_of(*edits)
    written = write(tmp_path / "it", release, "north", NORTH, inferred=False, kind=kind)
    signed = read(tmp_path / "it", KEYS)
    assert signed.signer == Member("north", NORTH.public) == written.signer
    assert signed.quality == written.quality and signed.file == f"data.{kind}"
    assert str(signed.release.statement) == str(release.statement)
    assert signed.release.manifest.digest == release.manifest.digest
    for name, column in release.dataset.columns.items():
        np.testing.assert_array_equal(signed.release.dataset.columns[name], column)
    np.testing.assert_array_equal(signed.release.dataset.labels, release.dataset.labels)
    if release.model is not None:
        assert signed.release.model is not None
        np.testing.assert_array_equal(signed.release.model.weights, release.model.weights)
        assert signed.release.model.params == release.params
    assert sorted(path.name for path in (tmp_path / "it").iterdir()) == sorted([f"data.{kind}", MANIFEST, DOCUMENT, SIGNATURE])


def test_the_document_says_all_that_a_reader_without_shoal_needs(written: Path) -> None:
    document, statement = document_of(written), release_of().statement
    assert document["statement"]["epsilon"] == statement.epsilon == 1
    assert document["privacy_label"] == str(statement).splitlines()
    assert [feature["name"] for feature in document["columns"]["features"]] == list(release_of().schema.names)
    assert document["data"]["sha256"] == hashlib.sha256((written / "data.csv").read_bytes()).hexdigest()
    assert document["study"] == release_of().manifest.digest.hex() and document["simulation"] is False


def test_a_simulation_says_so_wherever_one_looks(tmp_path: Path) -> None:
    write(tmp_path / "it", release_of(is_simulated=True), "a simulated holder", NORTH, inferred=False)
    document = document_of(tmp_path / "it")
    assert document["simulation"] is True and document["data"]["file"] == "simulated.csv"
    assert any("This is a simulation" in line for line in document["privacy_label"])
    assert read(tmp_path / "it").release.is_simulated
    resign(tmp_path / "it", document | {"simulation": False})
    assert refused(tmp_path / "it").code == "REL-005"
    (tmp_path / "it/simulated.csv").rename(tmp_path / "it/data.csv")
    resign(tmp_path / "it", document | {"simulation": False, "data": document["data"] | {"file": "data.csv"}})
    assert refused(tmp_path / "it").code == "REL-007"


def test_nothing_inferred_is_released(tmp_path: Path) -> None:
    for is_simulated in (False, True):
        with pytest.raises(UsageError) as caught:
            write(tmp_path / "it", release_of(is_simulated=is_simulated), "north", NORTH, inferred=True)
        assert caught.value.code == "REL-002" and "read from the data" in caught.value.what
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(written: Path) -> None:
    before = (written / SIGNATURE).read_bytes()
    for taken in (written, written / SIGNATURE):
        with pytest.raises(UsageError) as caught:
            write(taken, release_of(), "south", SOUTH, inferred=False)
        assert caught.value.code == "REL-001"
    (written.parent / "link").symlink_to("nowhere")
    with pytest.raises(UsageError):
        write(written.parent / "link", release_of(), "south", SOUTH, inferred=False)
    assert (written / SIGNATURE).read_bytes() == before


def test_a_directory_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        write(tmp_path / "none" / "it", release_of(), "north", NORTH, inferred=False)
    assert caught.value.code == "REL-001" and "cannot be written" in caught.value.what


def test_what_no_reader_would_believe_is_not_written(tmp_path: Path) -> None:
    release = release_of()
    dataset = replace(release.dataset, columns={**release.dataset.columns, "amount": np.full(500, -1.0)})
    with pytest.raises(UsageError) as caught:
        write(tmp_path / "it", replace(release, dataset=dataset), "north", NORTH, inferred=False)
    assert caught.value.code == "REL-002" and not list(tmp_path.iterdir())
    with pytest.raises(ShoalError):
        write(tmp_path / "it", release, "two\nlines", NORTH, inferred=False)


def test_a_key_that_was_not_expected(written: Path) -> None:
    assert read(written, [SOUTH.public, NORTH.public]).signer.name == "north"
    error = refused(written, [SOUTH.public])
    assert error.code == "REL-004" and "not one that was expected" in error.what
    assert refused(written, []).code == "REL-004"


@pytest.mark.parametrize("name", [DOCUMENT, SIGNATURE, MANIFEST, "data.csv"])
def test_every_byte_is_covered_by_the_signature(name: str, written: Path) -> None:
    whole = (written / name).read_bytes()
    for place in (0, len(whole) // 2, len(whole) - 1):
        (written / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert refused(written).code in {DOCUMENT: ["REL-004"], SIGNATURE: ["REL-004"]}.get(name, ["REL-005", "REL-006"])
    (written / name).write_bytes(whole + b"\n")
    refused(written)
    (written / name).write_bytes(whole)
    read(written)


def test_a_signature_for_another_purpose_is_none(written: Path) -> None:
    content = (written / DOCUMENT).read_bytes()
    (written / SIGNATURE).write_text(f"ed25519 {NORTH.public.hex()} {NORTH.sign(content).hex()}\n")
    assert refused(written).code == "REL-004"


def test_a_key_with_which_anybody_signs_is_none(written: Path) -> None:
    (written / SIGNATURE).write_text(f"ed25519 {(1).to_bytes(32, 'little').hex()} {'00' * 64}\n")
    assert refused(written).code == "REL-004"


def test_nobody_signs_in_the_name_of_another(written: Path) -> None:
    resign(written, (written / DOCUMENT).read_bytes(), SOUTH)
    assert refused(written).code == "REL-004"


def test_the_roster_says_who_may_sign(tmp_path: Path) -> None:
    from shoal.crypto.roster import Identity

    others = [Member(f"holder {i}", Identity.from_seed(bytes(30) + b"\2" + bytes([i])).public) for i in range(19)]
    release = release_of(SUMS, roster=(Member("north", NORTH.public), *others))
    write(tmp_path / "it", release, "north", NORTH, inferred=False)
    assert read(tmp_path / "it").signer.name == "north"
    for name, identity in (("north", SOUTH), ("south", NORTH)):
        with pytest.raises(UsageError) as caught:
            write(tmp_path / "other", release, name, identity, inferred=False)
        assert "roster" in caught.value.what


@pytest.mark.parametrize("name", [DOCUMENT, SIGNATURE, MANIFEST, "data.csv"])
def test_only_plain_files_of_a_fair_size_are_read(name: str, written: Path, tmp_path: Path) -> None:
    (written / name).rename(tmp_path / "aside")
    assert refused(written).code == "REL-003"
    (written / name).symlink_to(tmp_path / "aside")
    assert refused(written).code == "REL-003"
    (written / name).unlink()
    os.mkfifo(written / name)
    assert refused(written).code == "REL-003"
    (written / name).unlink()
    (written / name).mkdir()
    assert refused(written).code == "REL-003"


def test_a_file_without_end_is_not_read(written: Path) -> None:
    os.truncate(written / DOCUMENT, MAX_DOCUMENT + 1)
    error = refused(written)
    assert error.code == "REL-003" and "more than" in error.what


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("none", "No such file or directory"),
        ("a file", "it is not a directory"),
        ("a link", "it is a link"),
        ("a\0b", "no file has such a name"),
    ],
)
def test_what_is_no_release_is_a_sentence(path: str, why: str, written: Path) -> None:
    (written.parent / "a file").write_text("")
    (written.parent / "a link").symlink_to(written)
    error = refused(written.parent / path)
    assert error.code == "REL-003" and shown(str(written.parent / path)) in error.what and why in error.what


@pytest.mark.parametrize("name", ["README.md", "data.parquet", "simulated.csv", ".hidden", "inner/", "a\x1b[2J"])
def test_what_nobody_signed_does_not_lie_beside_it(name: str, written: Path) -> None:
    if name.endswith("/"):
        (written / name).mkdir()
    else:
        (written / name).write_text("epsilon is 0")
    error = refused(written, KEYS)
    assert error.code == "REL-003" and shown(name.rstrip("/")) in error.what and "\x1b" not in error.what


def lie(document: dict[str, Any], *path: str | int, to: Any) -> None:
    *inner, last = path
    for key in inner:
        document = document[key]  # type: ignore[index]
    assert json.dumps(document[last]) != json.dumps(to)  # type: ignore[index]
    document[last] = to  # type: ignore[index]


@pytest.mark.parametrize(
    ("path", "to", "code"),
    [
        (("statement", "epsilon"), 0.5, "REL-007"),
        (("statement", "delta"), 1e-6, "REL-007"),
        (("statement", "unit"), "person", "REL-007"),
        (("statement", "adversary"), "everyone", "REL-007"),
        (("statement", "releases", 0, "epsilon"), 0.1, "REL-007"),
        (("statement", "releases", 0, "count"), 2, "REL-007"),
        (("statement", "releases"), [], "REL-007"),
        (("statement", "not_covered"), [], "REL-007"),
        (("statement", "simulated"), 0, "REL-007"),
        (("notes",), ["nothing to see"], "REL-007"),
        (("privacy_label", 1), "all is well", "REL-007"),
        (("privacy_label",), [], "REL-007"),
        (("data", "rows"), 501, "REL-008"),
        (("model", "weights", 0), [0.0, 0.0], "REL-008"),
        (("model", "trust"), "secure-sum", "REL-008"),
        (("model", "features", 2, "values"), ["car", "home", "travel", "liability"], "REL-008"),
        (("model",), None, "REL-007"),
        (("quality", 0, "value"), 501.0, "REL-009"),
        (("quality", 1, "value"), 0.0, "REL-009"),
        (("quality", 1, "beside", "by drawing so many rows"), 0.5, "REL-009"),
        (("quality", 1, "source"), "the real rows", "REL-009"),
        (("quality",), [], "REL-009"),
        (("quality", -1, "what"), "error on real rows", "REL-009"),
        (("quality", -1, "value"), 1.5, "REL-009"),
        (("quality", -1, "beside"), {"the best there is": 0.5}, "REL-009"),
        (("quality", -1, "source"), "the released rows", "REL-009"),
        (("counted", "rows"), 40000.0, "REL-009"),
        (("counted", "shares"), [0.5, 0.5], "REL-009"),
        (("counted", "shares"), [1.0], "REL-007"),
        (("columns", "features", 0, "range"), [0.0, 1.0], "REL-005"),
        (("signer", "name"), "a\x1b[2J", "REL-004"),
        (("signer", "key"), SOUTH.public.hex(), "REL-004"),
        (("study",), "00" * 32, "REL-006"),
        (("data", "sha256"), "00" * 32, "REL-006"),
        (("data", "file"), "../it/data.csv", "REL-005"),
        (("data", "file"), "simulated.csv", "REL-003"),
        (("version",), 2, "REL-005"),
        (("version",), True, "REL-005"),
        (("version",), 1.0, "REL-005"),
        (("format",), "another", "REL-005"),
        (("simulation",), 0, "REL-005"),
    ],
)
def test_a_signer_cannot_lie_about_what_follows(path: tuple[str | int, ...], to: Any, code: str, written: Path) -> None:
    document = document_of(written)
    lie(document, *path, to=to)
    resign(written, document)
    assert refused(written, KEYS).code == code


def test_the_rows_must_fit_the_study(written: Path) -> None:
    good = (written / "data.csv").read_text()
    header, first, *rest = good.splitlines()
    amount, _, other = first.partition(",")
    for bad in (
        "\n".join([header, f"-1,{other}", *rest]),
        "\n".join([header, f"many,{other}", *rest]),
        "\n".join([header, f",{other}", *rest]),
        "\n".join([header, f"{amount},1,boat,1,yes", *rest]),
        "\n".join([header, f"{amount},1,home,1,", *rest]),
        "\n".join([header.replace("amount", "sum"), first, *rest]),
        "\n".join([f"{header},more", *(f"{row},1" for row in (first, *rest))]),
    ):
        (written / "data.csv").write_text(bad)
        document = document_of(written)
        document["data"]["sha256"] = hashlib.sha256(bad.encode()).hexdigest()
        resign(written, document)
        assert refused(written, KEYS).code == "REL-008"


def test_a_study_of_another_kind_is_no_release(written: Path) -> None:
    from shoal.study.load import parse
    from shoal.study.templates import study_text

    other = Manifest(parse(study_text("sdq")))
    document = document_of(written)
    rows = b"".join(b",".join([name.encode() for name in (*other.study.schema().names, other.study.label.name)]) + b"\n" for _ in range(1))
    (written / MANIFEST).write_bytes(other.to_bytes())
    (written / "data.csv").write_bytes(rows)
    document["study"] = other.digest.hex()
    document["data"] |= {"sha256": hashlib.sha256(rows).hexdigest(), "rows": 0}
    resign(written, document)
    error = refused(written)
    assert error.code == "REL-005" and "sdq" in error.what


def test_a_release_without_rows_can_be_read(tmp_path: Path) -> None:
    release = release_of(n_rows=0)
    write(tmp_path / "it", release, "north", NORTH, inferred=False)
    signed = read(tmp_path / "it")
    assert len(signed.release.dataset) == 0 and [finding.what for finding in signed.quality] == ["rows"]


def test_it_can_be_moved_and_copied(written: Path, tmp_path: Path) -> None:
    shutil.copytree(written, tmp_path / "copy")
    assert read(tmp_path / "copy", KEYS).signer.name == "north"


def test_the_bytes_of_rows_are_always_the_same() -> None:
    release: Release = release_of()
    assert to_bytes(release.schema, release.dataset, "csv") == to_bytes(release.schema, release.dataset, "csv")
