"""A release on disk: a directory of four files that is written whole or not at all, and believed only after every check.

Nothing else may lie there.

=================  ==================================================================================
file               what
=================  ==================================================================================
``data.csv``       the rows; or ``data.parquet``; ``simulated.csv`` where nothing real was released
``manifest.cbor``  the study, from which schema, price and statement follow
``release.json``   everything else, with the digests of the two
``signature``      ``ed25519``, the key and the signature of a context and the bytes of release.json
=================  ==================================================================================
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from shoal.crypto.roster import Identity, Roster
from shoal.errors import RemoteProtocolError, SpecError, StoreError, UsageError
from shoal.messages.codec import MAX_BYTES
from shoal.names import shown
from shoal.releases.content import Release, ReleaseError, refusing
from shoal.releases.data_files import Kind, from_bytes, to_bytes
from shoal.releases.document import Data, Document, checked, describe, file_name
from shoal.releases.findings import Finding
from shoal.study.manifest import Manifest, Member

MAX_DATA = 1 << 30
MAX_DOCUMENT = 1 << 25
DOCUMENT, MANIFEST, SIGNATURE = "release.json", "manifest.cbor", "signature"

_CONTEXT = b"shoal release 1\x00"
_SIGNATURE = re.compile(rb"ed25519 ([0-9a-f]{64}) ([0-9a-f]{128})\n")
_WHOLE = "Ask its signer for the release again, whole and as it was written."


@dataclass(frozen=True)
class Signed:
    """A release that has passed every check.

    Parameters
    ----------
    release
        What it says.
    signer
        Name and key of who signed. Only a key that came by another way says who that is.
    quality
        The quality report.
    file
        Name of the file of rows.
    """

    release: Release
    signer: Member
    quality: tuple[Finding, ...]
    file: str


def write(directory: Path, release: Release, signer: str, identity: Identity, *, inferred: bool, kind: Kind = "csv") -> Signed:
    """Write and sign a release, whole or not at all.

    Parameters
    ----------
    directory
        Where; nothing may be there yet.
    release
        What is released.
    signer, identity
        Name and key of the holder; those of the study's roster, if it has one.
    inferred
        Whether ranges or categories of the schema were read from the data. That was not a private act, and nothing is written.
    kind
        Of the file of rows; Parquet needs pyarrow.

    Raises
    ------
    UsageError
        The schema was inferred, the signer is not one, or something is already there.
    StoreError
        The directory cannot be written.

    Notes
    -----
    What was written is read again, with all checks, before it gets its name.

    Privacy
    -------
    Free: everything in it follows from what was charged for, and from public figures.
    """
    if inferred:
        raise UsageError(
            "REL-002",
            "Nothing that was fitted with ranges or categories read from the data may be released or signed.",
            why="They say what the smallest, the largest and the rarest values of real rows are.",
            fix="Declare a Schema, or a study file, from public knowledge, and fit again.",
        )
    member = Member(signer, identity.public)
    rows = to_bytes(release.schema, release.dataset, kind)
    name = file_name(release, kind)
    data = Data.model_validate({"file": name, "sha256": hashlib.sha256(rows).hexdigest(), "rows": len(release.dataset)})
    document = describe(release, member, data).to_bytes()
    signature = f"ed25519 {identity.public.hex()} {identity.sign(_CONTEXT + document).hex()}\n".encode()
    files = {name: rows, MANIFEST: release.manifest.to_bytes(), DOCUMENT: document, SIGNATURE: signature}
    if os.path.lexists(directory):
        raise UsageError("REL-001", f"{shown(str(directory))} is already there; a release is never overwritten.", fix="Choose a new name.")
    try:
        with tempfile.TemporaryDirectory(prefix=".release.", dir=directory.absolute().parent) as aside:
            staging = Path(aside) / "release"
            staging.mkdir()
            for file, content in files.items():
                _write(staging / file, content)
            signed = read(staging, keys=[member.key])
            staging.rename(directory)
    except ReleaseError as error:
        what = f"No reader would believe this release, and it is not written: {error.what}"
        raise UsageError("REL-002", what, why=error.why, fix="Give the rows and the model of one study, and its signer.") from None
    except OSError as error:
        what = f"{shown(str(directory))} cannot be written: {error.strerror}."
        raise StoreError("REL-001", what, fix="Choose a new directory in one that is there.") from None
    return signed


def read(directory: Path, keys: Collection[bytes] | None = None) -> Signed:
    """A release from its directory, if every check of it passes.

    Parameters
    ----------
    directory
        The release.
    keys
        Keys of which one must have signed, known by another way. Without them the signature says only that whoever has the key in the
        file signed what is there.

    Raises
    ------
    ReleaseError
        What does not fit, and where it may come from.

    Notes
    -----
    Bytes are verified before they are parsed. Nothing that is read is ever run.
    """
    names = _names_in(directory)
    key, signature = _signature(_bytes_of(directory / SIGNATURE, 1000))
    content = _bytes_of(directory / DOCUMENT, MAX_DOCUMENT)
    _verify(key, signature, _CONTEXT + content)
    if keys is not None and key not in keys:
        raise ReleaseError(
            "REL-004",
            f"The release is signed with the key {key.hex()[:16]}..., which is not one that was expected.",
            why="Somebody else has made it, or its signer has a new key.",
            fix="Ask the signer for its public key, by another way than this release came.",
        )
    document = Document.from_bytes(content)
    _check_alone(names, {SIGNATURE, DOCUMENT, MANIFEST, document.data.file})
    manifest = _manifest(_bytes_of(directory / MANIFEST, MAX_BYTES), document)
    member = document.member
    if member.key != key or (manifest.roster and member not in manifest.roster):
        raise ReleaseError("REL-004", "The signer is not the one that the release names, or not on its study's roster.", fix=_WHOLE)
    rows = _bytes_of(directory / document.data.file, MAX_DATA)
    if hashlib.sha256(rows).hexdigest() != document.data.sha256:
        what = f"{document.data.file} is not the file that was signed."
        raise ReleaseError("REL-006", what, why="It was altered, cut short or exchanged.", fix=_WHOLE)
    with refusing("REL-008", "The rows do not fit the study.", _WHOLE):
        dataset = from_bytes(manifest.study.schema(), rows, document.data.kind)
    return Signed(checked(document, manifest, dataset), member, tuple(document.quality), document.data.file)


def _signature(text: bytes) -> tuple[bytes, bytes]:
    match = _SIGNATURE.fullmatch(text)
    if match is None:
        raise ReleaseError("REL-004", "The file signature does not hold one.", fix=_WHOLE)
    return bytes.fromhex(match[1].decode()), bytes.fromhex(match[2].decode())


def _verify(key: bytes, signature: bytes, what: bytes) -> None:
    try:
        Roster(("signer",), (key,)).check(0, signature, what)
    except (SpecError, RemoteProtocolError):
        why = "Somebody has changed it after it was signed, or it was never signed with this key."
        raise ReleaseError("REL-004", "The signature of this release does not verify.", why=why, fix=_WHOLE) from None


def _manifest(data: bytes, document: Document) -> Manifest:
    with refusing("REL-005", "The study of this release cannot be read.", _WHOLE):
        manifest = Manifest.from_bytes(data)
    if manifest.digest.hex() != document.study:
        raise ReleaseError("REL-006", f"{MANIFEST} is not the file that was signed.", why="It is another study.", fix=_WHOLE)
    return manifest


def _names_in(directory: Path) -> list[str]:
    try:
        mode = directory.lstat().st_mode
        if stat.S_ISDIR(mode):
            return [path.name for path in directory.iterdir()]
        why = "it is a link, which is not followed" if stat.S_ISLNK(mode) else "it is not a directory"
    except (OSError, ValueError) as error:
        why = _reason(error)
    raise ReleaseError("REL-003", f"{shown(str(directory))} cannot be read: {why}.", fix="Give the directory of a release itself.")


def _check_alone(names: Collection[str], signed: Collection[str]) -> None:
    """Refuse what lies beside the files of a release: nobody has signed it, and it would be passed on with them."""
    others = sorted(set(names) - set(signed))
    if others:
        what = f"{shown(others[0])} lies in the directory of the release and is none of its files."
        raise ReleaseError("REL-003", what, why="Nobody has signed it, and whoever reads it may believe it.", fix="Remove it.")


def _bytes_of(path: Path, most: int) -> bytes:
    """What is in a plain file of a stranger's directory, which may hold links, pipes and files without end."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise _unreadable(path, "it is not a plain file")
            data = file.read(most + 1)
    except (OSError, ValueError) as error:
        raise _unreadable(path, _reason(error)) from None
    if len(data) > most:
        raise _unreadable(path, f"it has more than {most:,} bytes")
    return data


def _reason(error: OSError | ValueError) -> str:
    return (isinstance(error, OSError) and error.strerror) or "no file has such a name"


def _unreadable(path: Path, why: str) -> ReleaseError:
    fix = "Give the directory of a release, with all of its files."
    return ReleaseError("REL-003", f"{shown(path.name)} of this release cannot be read: {why}.", fix=fix)


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
