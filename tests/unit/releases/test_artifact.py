"""Release directories: written atomically, and a code for each kind of fault."""

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

from shoal.errors import ShoalError, StoreError, UsageError
from shoal.releases.artifact import (
    DOCUMENT,
    MANIFEST,
    MAX_DOCUMENT,
    SIGNATURE,
    read_signed_release,
    write_signed_release,
)
from shoal.releases.content import PFDSRelease, ReleaseError, RowsFormat, encode_rows
from shoal.study.manifest import Manifest, RosterMember
from shoal.text import escape_text
from tests.support.releases import (
    NORTH,
    NOT_MISSING,
    NUMBER,
    PAPER,
    SOUTH,
    SUMS,
    make_release,
    resign,
)

KEYS = [NORTH.public_key]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_signed_release(tmp_path / "it", make_release(), "north", NORTH, is_inferred=False)
    return tmp_path / "it"


def read_document(directory: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((directory / DOCUMENT).read_bytes())
    return content


def catch_release_error(directory: Path, keys: list[bytes] | None = None) -> ReleaseError:
    with pytest.raises(ReleaseError) as caught:
        read_signed_release(directory, keys)
    assert caught.value.exit_code == 7 and caught.value.fix
    return caught.value


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize(
    "edits", [(), (SUMS,), (NUMBER,), (PAPER, NOT_MISSING), (PAPER, NOT_MISSING, NUMBER)]
)
def test_read_signed_release_inverts_write(
    edits: tuple[tuple[str, str], ...], kind: RowsFormat, tmp_path: Path
) -> None:
    release = make_release(*edits)
    written = write_signed_release(
        tmp_path / "it", release, "north", NORTH, is_inferred=False, file_format=kind
    )
    signed = read_signed_release(tmp_path / "it", KEYS)
    assert signed.signer == RosterMember("north", NORTH.public_key) == written.signer
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
    assert sorted(path.name for path in (tmp_path / "it").iterdir()) == sorted(
        [f"data.{kind}", MANIFEST, DOCUMENT, SIGNATURE]
    )


def test_release_document_is_complete_without_shoal(written: Path) -> None:
    document, statement = read_document(written), make_release().statement
    assert document["statement"]["epsilon"] == statement.epsilon == 1
    assert document["privacy_label"] == str(statement).splitlines()
    assert [feature["name"] for feature in document["columns"]["features"]] == list(
        make_release().schema.names
    )
    assert (
        document["data"]["sha256"]
        == hashlib.sha256((written / "data.csv").read_bytes()).hexdigest()
    )
    assert (
        document["study"] == make_release().manifest.digest.hex()
        and document["simulation"] is False
    )


def test_simulated_release_is_marked_in_every_part(tmp_path: Path) -> None:
    write_signed_release(
        tmp_path / "it",
        make_release(is_simulated=True),
        "a simulated holder",
        NORTH,
        is_inferred=False,
    )
    document = read_document(tmp_path / "it")
    assert document["simulation"] is True and document["data"]["file"] == "simulated.csv"
    assert any("This is a simulation" in line for line in document["privacy_label"])
    assert read_signed_release(tmp_path / "it").release.is_simulated
    resign(tmp_path / "it", document | {"simulation": False})
    assert catch_release_error(tmp_path / "it").code == "REL-005"
    (tmp_path / "it/simulated.csv").rename(tmp_path / "it/data.csv")
    resign(
        tmp_path / "it",
        document | {"simulation": False, "data": document["data"] | {"file": "data.csv"}},
    )
    assert catch_release_error(tmp_path / "it").code == "REL-007"


def test_write_rejects_inferred_schemas(tmp_path: Path) -> None:
    for is_simulated in (False, True):
        with pytest.raises(UsageError) as caught:
            write_signed_release(
                tmp_path / "it",
                make_release(is_simulated=is_simulated),
                "north",
                NORTH,
                is_inferred=True,
            )
        assert caught.value.code == "REL-002" and "inferred from the data" in caught.value.what
    assert not list(tmp_path.iterdir())


def test_write_overwrites_nothing(written: Path) -> None:
    before = (written / SIGNATURE).read_bytes()
    for taken in (written, written / SIGNATURE):
        with pytest.raises(UsageError) as caught:
            write_signed_release(taken, make_release(), "south", SOUTH, is_inferred=False)
        assert caught.value.code == "REL-001"
    (written.parent / "link").symlink_to("nowhere")
    with pytest.raises(UsageError):
        write_signed_release(
            written.parent / "link", make_release(), "south", SOUTH, is_inferred=False
        )
    assert (written / SIGNATURE).read_bytes() == before


def test_unwritable_directory_raises_rel_001(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        write_signed_release(
            tmp_path / "none" / "it", make_release(), "north", NORTH, is_inferred=False
        )
    assert caught.value.code == "REL-001" and "cannot be written" in caught.value.what


def test_write_rejects_invalid_releases_and_signer_names(tmp_path: Path) -> None:
    release = make_release()
    dataset = replace(
        release.dataset, columns={**release.dataset.columns, "amount": np.full(500, -1.0)}
    )
    with pytest.raises(UsageError) as caught:
        write_signed_release(
            tmp_path / "it", replace(release, dataset=dataset), "north", NORTH, is_inferred=False
        )
    assert caught.value.code == "REL-002" and not list(tmp_path.iterdir())
    with pytest.raises(ShoalError):
        write_signed_release(tmp_path / "it", release, "two\nlines", NORTH, is_inferred=False)


def test_read_rejects_unexpected_keys(written: Path) -> None:
    assert read_signed_release(written, [SOUTH.public_key, NORTH.public_key]).signer.name == "north"
    error = catch_release_error(written, [SOUTH.public_key])
    assert error.code == "REL-004" and "unexpected key" in error.what
    assert catch_release_error(written, []).code == "REL-004"


@pytest.mark.parametrize("name", [DOCUMENT, SIGNATURE, MANIFEST, "data.csv"])
def test_read_detects_a_change_of_any_byte(name: str, written: Path) -> None:
    whole = (written / name).read_bytes()
    for place in (0, len(whole) // 2, len(whole) - 1):
        (written / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert catch_release_error(written).code in {
            DOCUMENT: ["REL-004"],
            SIGNATURE: ["REL-004"],
        }.get(name, ["REL-005", "REL-006"])
    (written / name).write_bytes(whole + b"\n")
    catch_release_error(written)
    (written / name).write_bytes(whole)
    read_signed_release(written)


def test_read_rejects_signature_without_domain_separation(written: Path) -> None:
    content = (written / DOCUMENT).read_bytes()
    (written / SIGNATURE).write_text(
        f"ed25519 {NORTH.public_key.hex()} {NORTH.sign(content).hex()}\n"
    )
    assert catch_release_error(written).code == "REL-004"


def test_read_rejects_signer_keys_of_small_order(written: Path) -> None:
    (written / SIGNATURE).write_text(f"ed25519 {(1).to_bytes(32, 'little').hex()} {'00' * 64}\n")
    assert catch_release_error(written).code == "REL-004"


def test_read_rejects_signature_with_another_key(written: Path) -> None:
    resign(written, (written / DOCUMENT).read_bytes(), SOUTH)
    assert catch_release_error(written).code == "REL-004"


def test_only_roster_members_may_sign(tmp_path: Path) -> None:
    from shoal.crypto.identity import Identity

    others = [
        RosterMember(f"holder {i}", Identity.from_seed(bytes(30) + b"\2" + bytes([i])).public_key)
        for i in range(19)
    ]
    release = make_release(SUMS, roster=(RosterMember("north", NORTH.public_key), *others))
    write_signed_release(tmp_path / "it", release, "north", NORTH, is_inferred=False)
    assert read_signed_release(tmp_path / "it").signer.name == "north"
    for name, identity in (("north", SOUTH), ("south", NORTH)):
        with pytest.raises(UsageError) as caught:
            write_signed_release(tmp_path / "other", release, name, identity, is_inferred=False)
        assert "roster" in caught.value.what


@pytest.mark.parametrize("name", [DOCUMENT, SIGNATURE, MANIFEST, "data.csv"])
def test_read_rejects_missing_files_links_pipes_and_directories(
    name: str, written: Path, tmp_path: Path
) -> None:
    (written / name).rename(tmp_path / "aside")
    assert catch_release_error(written).code == "REL-003"
    (written / name).symlink_to(tmp_path / "aside")
    assert catch_release_error(written).code == "REL-003"
    (written / name).unlink()
    os.mkfifo(written / name)
    assert catch_release_error(written).code == "REL-003"
    (written / name).unlink()
    (written / name).mkdir()
    assert catch_release_error(written).code == "REL-003"


def test_read_rejects_files_above_the_size_limit(written: Path) -> None:
    os.truncate(written / DOCUMENT, MAX_DOCUMENT + 1)
    error = catch_release_error(written)
    assert error.code == "REL-003" and "more than" in error.what


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("none", "No such file or directory"),
        ("a file", "it is not a directory"),
        ("a link", "it is a symbolic link"),
        ("a\0b", "this is not a valid file name"),
    ],
)
def test_read_explains_why_a_path_is_not_a_release(path: str, why: str, written: Path) -> None:
    (written.parent / "a file").write_text("")
    (written.parent / "a link").symlink_to(written)
    error = catch_release_error(written.parent / path)
    assert (
        error.code == "REL-003"
        and escape_text(str(written.parent / path)) in error.what
        and why in error.what
    )


@pytest.mark.parametrize(
    "name", ["README.md", "data.parquet", "simulated.csv", ".hidden", "inner/", "a\x1b[2J"]
)
def test_read_rejects_directories_with_other_files(name: str, written: Path) -> None:
    if name.endswith("/"):
        (written / name).mkdir()
    else:
        (written / name).write_text("epsilon is 0")
    error = catch_release_error(written, KEYS)
    assert (
        error.code == "REL-003"
        and escape_text(name.rstrip("/")) in error.what
        and "\x1b" not in error.what
    )


def change_field(document: dict[str, Any], *path: str | int, to: Any) -> None:
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
        (("signer", "key"), SOUTH.public_key.hex(), "REL-004"),
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
def test_read_rejects_signed_documents_with_wrong_fields(
    path: tuple[str | int, ...], to: Any, code: str, written: Path
) -> None:
    document = read_document(written)
    change_field(document, *path, to=to)
    resign(written, document)
    assert catch_release_error(written, KEYS).code == code


def test_read_rejects_rows_that_do_not_fit_the_study(written: Path) -> None:
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
        document = read_document(written)
        document["data"]["sha256"] = hashlib.sha256(bad.encode()).hexdigest()
        resign(written, document)
        assert catch_release_error(written, KEYS).code == "REL-008"


def test_read_rejects_releases_of_other_protocols(written: Path) -> None:
    from shoal.study.loader import parse_study_text
    from shoal.study.starters import read_starter

    other = Manifest(parse_study_text(read_starter("sdq")))
    document = read_document(written)
    rows = b"".join(
        b",".join([name.encode() for name in (*other.study.schema().names, other.study.label.name)])
        + b"\n"
        for _ in range(1)
    )
    (written / MANIFEST).write_bytes(other.to_bytes())
    (written / "data.csv").write_bytes(rows)
    document["study"] = other.digest.hex()
    document["data"] |= {"sha256": hashlib.sha256(rows).hexdigest(), "rows": 0}
    resign(written, document)
    error = catch_release_error(written)
    assert error.code == "REL-005" and "sdq" in error.what


def test_read_accepts_a_release_without_rows(tmp_path: Path) -> None:
    release = make_release(n_rows=0)
    write_signed_release(tmp_path / "it", release, "north", NORTH, is_inferred=False)
    signed = read_signed_release(tmp_path / "it")
    assert len(signed.release.dataset) == 0 and [finding.what for finding in signed.quality] == [
        "rows"
    ]


def test_release_directory_can_be_copied(written: Path, tmp_path: Path) -> None:
    shutil.copytree(written, tmp_path / "copy")
    assert read_signed_release(tmp_path / "copy", KEYS).signer.name == "north"


def test_encode_rows_is_deterministic() -> None:
    release: PFDSRelease = make_release()
    assert encode_rows(release.schema, release.dataset, "csv") == encode_rows(
        release.schema, release.dataset, "csv"
    )
