"""``release.json``: everything in a release except its rows.

`shoal.releases.artifact` writes and reads it. The document is validated strictly and contains
nothing that can run. A reader derives the statement, its label and the quality report again from
the study and the rows, and accepts the release only if they match.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from shoal.messages.base import Record, describe_validation_error
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.model import PooledModel, from_plain
from shoal.protocols.schema_json import describe_schema
from shoal.releases.content import (
    NoisyRowCount,
    PFDSRelease,
    ReleaseError,
    RowsFormat,
    raise_as_release_error,
)
from shoal.releases.quality import QualityFinding, is_report_consistent, make_quality_report
from shoal.study.manifest import Manifest, RosterMember
from shoal.study.pfds import build_params
from shoal.study.settings import MAX_PARAGRAPH

FORMAT: Literal["shoal release"] = "shoal release"
VERSION: Literal[1] = 1
MAX_NOTES = 100

_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_FIX = "Ask the signer for a complete and unchanged copy of the release."


class Signer(Record):
    """The signer: a name of the signer's choice, and the public key."""

    name: str
    key: _Hash


class ReleaseDataFile(Record):
    """The data file with the rows."""

    file: Literal["data.csv", "data.parquet", "simulated.csv", "simulated.parquet"]
    sha256: _Hash
    rows: Annotated[int, Field(ge=0)]

    @property
    def file_format(self) -> RowsFormat:
        """The format of the file."""
        return "csv" if self.file.endswith(".csv") else "parquet"


class ReleaseDocument(Record):
    """All fields of ``release.json``; docs/reference/release.md explains them."""

    format: Literal["shoal release"]
    version: Literal[1]
    simulation: bool
    signer: Signer
    study: _Hash
    columns: dict[str, Any]
    data: ReleaseDataFile
    statement: dict[str, Any]
    privacy_label: list[str]
    notes: Annotated[
        list[Annotated[str, Field(max_length=MAX_PARAGRAPH)]], Field(max_length=MAX_NOTES)
    ]
    counted: NoisyRowCount | None
    model: dict[str, Any] | None
    quality: list[QualityFinding]

    def to_bytes(self) -> bytes:
        """Return the bytes that are written and signed."""
        return (
            json.dumps(self.model_dump(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        ).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> ReleaseDocument:
        """Parse a document; raise `ReleaseError` if it is invalid."""
        try:
            plain = json.loads(data.decode(), object_pairs_hook=_reject_duplicate_keys)
            # Python accepts NaN, and a lone surrogate in a text until it is encoded.
            json.dumps(plain, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            why = "It has a duplicate key." if isinstance(error, _DuplicateKeyError) else None
            raise _make_document_error("it is not strict JSON", why) from None
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise _make_document_error("it does not contain a release")
        if not _is_same_json(plain.get("version"), VERSION):
            raise ReleaseError(
                "REL-005",
                f"The version of this release is not {VERSION}, which this shoal reads.",
                fix="Upgrade shoal.",
            )
        try:
            return cls.model_validate(plain)
        except ValidationError as error:
            raise _make_document_error(
                f"a field is invalid: {describe_validation_error(error)}"
            ) from None

    @property
    def member(self) -> RosterMember:
        """The signer, with a name that can be shown and a key that can sign."""
        with raise_as_release_error("REL-004", "The signer of this release is invalid.", _FIX):
            return RosterMember(self.signer.name, bytes.fromhex(self.signer.key))


def make_document(
    release: PFDSRelease, signer: RosterMember, data: ReleaseDataFile
) -> ReleaseDocument:
    """Return the document of a release with its rows in a file."""
    return ReleaseDocument(
        format=FORMAT,
        version=VERSION,
        simulation=release.is_simulated,
        signer=Signer(name=signer.name, key=signer.key.hex()),
        study=release.manifest.digest.hex(),
        columns=describe_schema(release.schema),
        data=data,
        statement=release.statement.to_dict(),
        privacy_label=str(release.statement).splitlines(),
        notes=list(release.notes),
        counted=release.noisy_count,
        model=None if release.model is None else release.model.to_plain(),
        quality=list(make_quality_report(release)),
    )


def make_file_name(release: PFDSRelease, file_format: RowsFormat) -> str:
    """Return the name of the data file, which states if it comes from a simulation.

    The file may be passed on without the rest of the release.
    """
    return f"{'simulated' if release.is_simulated else 'data'}.{file_format}"


def verify_document(document: ReleaseDocument, manifest: Manifest, dataset: Dataset) -> PFDSRelease:
    """Return the release, if everything in its document follows from study and rows.

    Raises
    ------
    ReleaseError
        The model does not fit the study, or the statement, its label or the quality report does not
        match.
    """
    if len(dataset) != document.data.rows:
        raise ReleaseError(
            "REL-008",
            f"The release states {document.data.rows:,} rows, but has {len(dataset):,}.",
            fix=_FIX,
        )
    if manifest.study.pfds is None:
        raise ReleaseError(
            "REL-005",
            f"A study with protocol {manifest.study.protocol} releases no rows.",
            fix=_FIX,
        )
    model = None if document.model is None else _parse_model(document.model, manifest)
    with raise_as_release_error(
        "REL-007",
        "The parts of this release do not match, or its study has no privacy statement.",
        _FIX,
    ):
        release = PFDSRelease(
            manifest, dataset, document.simulation, model, document.counted, tuple(document.notes)
        )
        statement = release.statement
    if document.data.file != make_file_name(
        release, document.data.file_format
    ) or not _is_same_json(document.columns, describe_schema(release.schema)):
        raise ReleaseError(
            "REL-005",
            "The name or the schema of the data file does not match the study.",
            fix=_FIX,
        )
    if (
        not _is_same_json(document.statement, statement.to_dict())
        or document.privacy_label != str(statement).splitlines()
    ):
        raise ReleaseError(
            "REL-007",
            "The privacy statement does not match the study.",
            why="Its releases, total, scope or label were altered, or another version of shoal "
            "wrote its text.",
            fix=_FIX,
        )
    if not is_report_consistent(release, document.quality):
        what = "The quality report does not match the rows, the model and the study."
        raise ReleaseError("REL-009", what, fix=_FIX)
    return release


def _parse_model(plain: dict[str, Any], manifest: Manifest) -> PooledModel:
    what = "The model does not fit the study."
    with raise_as_release_error("REL-008", what, _FIX):
        model = from_plain(plain)
    params = build_params(manifest.study)
    # Compared as plain data, which keeps the order of groups: it numbers the cells.
    if (
        describe_schema(model.schema) != describe_schema(params.coded_schema)
        or model.params.trust != params.trust
    ):
        raise ReleaseError(
            "REL-008", what, why="Its cells or its trust level belong to another study.", fix=_FIX
        )
    return replace(model, params=params)


def _is_same_json(one: object, other: object) -> bool:
    """Return whether two values are the same in JSON, where true, 1 and 1.0 differ."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


class _DuplicateKeyError(ValueError):
    """An object has a duplicate key."""


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise _DuplicateKeyError
    return dict(pairs)


def _make_document_error(what: str, why: str | None = None) -> ReleaseError:
    return ReleaseError("REL-005", f"release.json is not valid: {what}.", why=why, fix=_FIX)
