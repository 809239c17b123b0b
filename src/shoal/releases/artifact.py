"""Write and verify a release directory.

Holders write releases with `write_signed_release`; ``shoal release`` reads them. A directory has
exactly four files:

``data.csv``, ``data.parquet``, ``simulated.csv`` or ``simulated.parquet``
    The rows; ``simulated`` if nothing real was released.
``manifest.cbor``
    The study, which determines schema, price and statement.
``release.json``
    Everything else, with the digests of the two files above.
``signature``
    ``ed25519``, the key, and the signature of a context and the bytes of ``release.json``.

A directory is written completely or not at all. A release is accepted only after every check, and
bytes are verified before they are parsed.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from shoal.crypto.identity import Identity, Roster
from shoal.errors import RemoteProtocolError, SpecError, StoreError, UsageError
from shoal.files import write_directory
from shoal.messages.codec import MAX_BYTES
from shoal.releases.content import (
    PFDSRelease,
    ReleaseError,
    RowsFormat,
    decode_rows,
    encode_rows,
    raise_as_release_error,
)
from shoal.releases.document import (
    ReleaseDataFile,
    ReleaseDocument,
    make_document,
    make_file_name,
    verify_document,
)
from shoal.releases.quality import QualityFinding
from shoal.study.manifest import Manifest, RosterMember
from shoal.text import escape_text

MAX_DATA = 1 << 30
MAX_DOCUMENT = 1 << 25
DOCUMENT, MANIFEST, SIGNATURE = "release.json", "manifest.cbor", "signature"

_CONTEXT = b"shoal release 1\x00"
_SIGNATURE = re.compile(rb"ed25519 ([0-9a-f]{64}) ([0-9a-f]{128})\n")
_FIX = "Ask the signer for a complete and unchanged copy of the release."


@dataclass(frozen=True)
class VerifiedRelease:
    """A release that has passed every check.

    Parameters
    ----------
    signer
        Name and key of the signer. Only a key from another channel proves who that is.
    file
        Name of the data file.
    """

    release: PFDSRelease
    signer: RosterMember
    quality: tuple[QualityFinding, ...]
    file: str


def write_signed_release(
    directory: Path,
    release: PFDSRelease,
    signer: str,
    identity: Identity,
    *,
    is_inferred: bool,
    file_format: RowsFormat = "csv",
) -> VerifiedRelease:
    """Write and sign a release, completely or not at all.

    Parameters
    ----------
    directory
        A path that does not exist.
    signer, identity
        Name and key of the holder; those on the study's roster, if it has one.
    is_inferred
        True if ranges or categories of the schema were read from the data. That was not private,
        and nothing is written.
    file_format
        Format of the data file; Parquet needs pyarrow.

    Raises
    ------
    UsageError
        The schema was inferred, the signer is invalid, or the path is taken.
    StoreError
        The directory cannot be written.

    Notes
    -----
    The written files are read again, with all checks, before the directory gets its name.

    Privacy
    -------
    Free: all content follows from values that were charged for, and from public parameters.
    """
    if is_inferred:
        raise UsageError(
            "REL-002",
            "The schema was inferred from the data. Such a release must not be written or signed.",
            why="Inferred ranges and categories reveal the extreme and the rare values of real "
            "rows.",
            fix="Declare a Schema, or a study file, from public knowledge, and fit again.",
        )
    member = RosterMember(signer, identity.public_key)
    rows = encode_rows(release.schema, release.dataset, file_format)
    name = make_file_name(release, file_format)
    data = ReleaseDataFile.model_validate(
        {"file": name, "sha256": hashlib.sha256(rows).hexdigest(), "rows": len(release.dataset)}
    )
    document = make_document(release, member, data).to_bytes()
    signature = (
        f"ed25519 {identity.public_key.hex()} {identity.sign(_CONTEXT + document).hex()}\n".encode()
    )
    files = {
        name: rows,
        MANIFEST: release.manifest.to_bytes(),
        DOCUMENT: document,
        SIGNATURE: signature,
    }
    if os.path.lexists(directory):
        raise UsageError(
            "REL-001",
            f"{escape_text(str(directory))} already exists. A release is never overwritten.",
            fix="Choose a new name.",
        )
    if not directory.absolute().parent.is_dir():
        raise StoreError(
            "REL-001",
            f"{escape_text(str(directory))} cannot be written: its parent does not exist.",
            fix="Choose a new directory in an existing one.",
        )
    verified: list[VerifiedRelease] = []
    try:
        write_directory(
            directory,
            files,
            code="REL-001",
            fix="Choose a new directory in an existing one.",
            check=lambda staging: verified.append(read_signed_release(staging, keys=[member.key])),
        )
    except ReleaseError as error:
        what = f"The release was not written, because a reader would reject it: {error.what}"
        raise UsageError(
            "REL-002",
            what,
            why=error.why,
            fix="Give the rows and the model of one study, and a signer on its roster.",
        ) from None
    return verified[0]


def read_signed_release(directory: Path, keys: Collection[bytes] | None = None) -> VerifiedRelease:
    """Return the release in a directory, if every check passes.

    Parameters
    ----------
    keys
        Accepted keys of signers, known from another channel. Without them the signature proves only
        that the owner of the key in the file has signed the release.

    Raises
    ------
    ReleaseError
        A check failed; the error says which, and possible causes.

    Notes
    -----
    Bytes are verified before they are parsed. Nothing in a release is executed.
    """
    names = _list_files(directory)
    key, signature = _parse_signature(_read_file(directory / SIGNATURE, 1000))
    content = _read_file(directory / DOCUMENT, MAX_DOCUMENT)
    _verify_signature(key, signature, _CONTEXT + content)
    if keys is not None and key not in keys:
        raise ReleaseError(
            "REL-004",
            f"The release is signed with the unexpected key {key.hex()[:16]}....",
            why="Someone else has made it, or its signer has a new key.",
            fix="Ask the signer for the public key over a different channel than this release.",
        )
    document = ReleaseDocument.from_bytes(content)
    _check_no_other_files(names, {SIGNATURE, DOCUMENT, MANIFEST, document.data.file})
    manifest = _parse_manifest(_read_file(directory / MANIFEST, MAX_BYTES), document)
    member = document.member
    if member.key != key or (manifest.roster and member not in manifest.roster):
        raise ReleaseError(
            "REL-004",
            "The key is not that of the named signer, or the signer is not on the study's roster.",
            fix=_FIX,
        )
    rows = _read_file(directory / document.data.file, MAX_DATA)
    if hashlib.sha256(rows).hexdigest() != document.data.sha256:
        what = f"{document.data.file} is not the signed file."
        raise ReleaseError("REL-006", what, why="It was changed, truncated or replaced.", fix=_FIX)
    with raise_as_release_error("REL-008", "The rows do not fit the study.", _FIX):
        dataset = decode_rows(manifest.study.schema(), rows, document.data.file_format)
    return VerifiedRelease(
        verify_document(document, manifest, dataset),
        member,
        tuple(document.quality),
        document.data.file,
    )


def _parse_signature(text: bytes) -> tuple[bytes, bytes]:
    match = _SIGNATURE.fullmatch(text)
    if match is None:
        raise ReleaseError("REL-004", "The file signature does not contain a signature.", fix=_FIX)
    return bytes.fromhex(match[1].decode()), bytes.fromhex(match[2].decode())


def _verify_signature(key: bytes, signature: bytes, what: bytes) -> None:
    try:
        Roster(("signer",), (key,)).check_signature(0, signature, what)
    except (SpecError, RemoteProtocolError):
        why = "It was changed after signing, or was not signed with this key."
        raise ReleaseError(
            "REL-004", "The signature of this release is not valid.", why=why, fix=_FIX
        ) from None


def _parse_manifest(data: bytes, document: ReleaseDocument) -> Manifest:
    with raise_as_release_error("REL-005", "The study of this release cannot be read.", _FIX):
        manifest = Manifest.from_bytes(data)
    if manifest.digest.hex() != document.study:
        raise ReleaseError(
            "REL-006",
            f"{MANIFEST} is not the signed file.",
            why="It describes another study.",
            fix=_FIX,
        )
    return manifest


def _list_files(directory: Path) -> list[str]:
    try:
        mode = directory.lstat().st_mode
        if stat.S_ISDIR(mode):
            return [path.name for path in directory.iterdir()]
        why = "it is a symbolic link" if stat.S_ISLNK(mode) else "it is not a directory"
    except (OSError, ValueError) as error:
        why = _describe_os_error(error)
    raise ReleaseError(
        "REL-003",
        f"{escape_text(str(directory))} cannot be read: {why}.",
        fix="Give the directory of a release, not a link.",
    )


def _check_no_other_files(names: Collection[str], signed: Collection[str]) -> None:
    """Raise ``REL-003`` for files that are not part of a release.

    They are not signed, and would be passed on with the release.
    """
    others = sorted(set(names) - set(signed))
    if others:
        what = (
            f"{escape_text(others[0])} is in the directory of the release, but is not part of it."
        )
        raise ReleaseError(
            "REL-003",
            what,
            why="It is not signed, and a reader may trust it.",
            fix="Remove it.",
        )


def _read_file(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file in an untrusted directory.

    The directory may contain links, pipes and endless files.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise _make_file_error(path, "it is not a regular file")
            data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise _make_file_error(path, _describe_os_error(error)) from None
    if len(data) > max_bytes:
        raise _make_file_error(path, f"it has more than {max_bytes:,} bytes")
    return data


def _describe_os_error(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or "this is not a valid file name"


def _make_file_error(path: Path, why: str) -> ReleaseError:
    fix = "Give the directory of a release with all its files."
    return ReleaseError(
        "REL-003", f"{escape_text(path.name)} of this release cannot be read: {why}.", fix=fix
    )
