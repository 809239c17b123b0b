"""``release.json``: a release in words and figures, all but its rows. It is read strictly, and nothing in it can run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from shoal.messages.base import Record
from shoal.messages.base import describe as fault_of
from shoal.protocols.model_files import describe_schema
from shoal.protocols.pfds.dataset import Dataset
from shoal.protocols.pfds.model import Model, from_plain
from shoal.releases.content import Counted, Release, ReleaseError, refusing
from shoal.releases.data_files import Kind
from shoal.releases.findings import Finding
from shoal.releases.quality import agree, report
from shoal.study.manifest import Manifest, Member
from shoal.study.pfds import params_of
from shoal.study.values import MAX_PARAGRAPH

FORMAT: Literal["shoal release"] = "shoal release"
VERSION: Literal[1] = 1
MOST_NOTES = 100

_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_AS_WRITTEN = "Ask its signer for the release again, whole and as it was written."


class Signer(Record):
    """Who signs: a name that the signer chose, and the public key."""

    name: str
    key: _Hash


class Data(Record):
    """The file of rows."""

    file: Literal["data.csv", "data.parquet", "simulated.csv", "simulated.parquet"]
    sha256: _Hash
    rows: Annotated[int, Field(ge=0)]

    @property
    def kind(self) -> Kind:
        """Of which form it is."""
        return "csv" if self.file.endswith(".csv") else "parquet"


class Document(Record):
    """All fields of ``release.json``; docs/reference/release.md explains them."""

    format: Literal["shoal release"]
    version: Literal[1]
    simulation: bool
    signer: Signer
    study: _Hash
    columns: dict[str, Any]
    data: Data
    statement: dict[str, Any]
    privacy_label: list[str]
    notes: Annotated[list[Annotated[str, Field(max_length=MAX_PARAGRAPH)]], Field(max_length=MOST_NOTES)]
    counted: Counted | None
    model: dict[str, Any] | None
    quality: list[Finding]

    def to_bytes(self) -> bytes:
        """The document as it is written and signed."""
        return (json.dumps(self.model_dump(), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Document:
        """The document that some bytes are; `ReleaseError` for anything else."""
        try:
            plain = json.loads(data.decode(), object_pairs_hook=_once)
            # Python reads NaN, and a lone half of a pair of code units passes for text until somebody prints it.
            json.dumps(plain, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            why = "A key is there twice." if isinstance(error, _TwiceError) else None
            raise _unreadable("it is not strict JSON", why) from None
        if not isinstance(plain, dict) or plain.get("format") != FORMAT:
            raise _unreadable("its content is something else")
        if not _same(plain.get("version"), VERSION):
            raise ReleaseError("REL-005", "The release is of a version of the format that is not known here.", fix="Upgrade shoal.")
        try:
            return cls.model_validate(plain)
        except ValidationError as error:
            raise _unreadable(f"a field does not fit its declaration: {fault_of(error)}") from None

    @property
    def member(self) -> Member:
        """The signer, with a name that can be shown and a key that can sign."""
        with refusing("REL-004", "The signer of this release cannot be.", _AS_WRITTEN):
            return Member(self.signer.name, bytes.fromhex(self.signer.key))


def describe(release: Release, signer: Member, data: Data) -> Document:
    """The document of a release whose rows are in a file."""
    return Document(
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
        counted=release.counted,
        model=None if release.model is None else release.model.to_plain(),
        quality=list(report(release)),
    )


def file_name(release: Release, kind: Kind) -> str:
    """The file of rows says by its name whether it comes of a simulation: it may be passed on alone."""
    return f"{'simulated' if release.is_simulated else 'data'}.{kind}"


def checked(document: Document, manifest: Manifest, dataset: Dataset) -> Release:
    """The release that a document, a study and rows make, if all that it says follows from them.

    Raises
    ------
    ReleaseError
        The model does not fit the study, or the statement, its label or the quality report are not what follows.
    """
    if len(dataset) != document.data.rows:
        raise ReleaseError("REL-008", f"The release states {document.data.rows:,} rows and has {len(dataset):,}.", fix=_AS_WRITTEN)
    if manifest.study.pfds is None:
        raise ReleaseError("REL-005", f"The study of this release is of {manifest.study.protocol}.", fix=_AS_WRITTEN)
    model = None if document.model is None else _model(document.model, manifest)
    with refusing("REL-007", "Its parts do not belong together, or no statement follows from the study of this release.", _AS_WRITTEN):
        release = Release(manifest, dataset, document.simulation, model, document.counted, tuple(document.notes))
        statement = release.statement
    if document.data.file != file_name(release, document.data.kind) or not _same(document.columns, describe_schema(release.schema)):
        raise ReleaseError("REL-005", "The name of the file of rows, or their schema, is not what follows from the study.", fix=_AS_WRITTEN)
    if not _same(document.statement, statement.to_dict()) or document.privacy_label != str(statement).splitlines():
        raise ReleaseError(
            "REL-007",
            "The privacy statement is not the one that follows from the study.",
            why="Its releases, total, scope or label were altered, or were worded by another version of shoal.",
            fix=_AS_WRITTEN,
        )
    if not agree(release, document.quality):
        what = "The quality report is not the one that follows from the rows, the model and the study."
        raise ReleaseError("REL-009", what, fix=_AS_WRITTEN)
    return release


def _model(plain: dict[str, Any], manifest: Manifest) -> Model:
    what = "The model does not fit the study."
    with refusing("REL-008", what, _AS_WRITTEN):
        model = from_plain(plain)
    params = params_of(manifest.study)
    # Compared in words, where groups have an order: it says which cell is whose.
    if describe_schema(model.schema) != describe_schema(params.coded) or model.params.trust != params.trust:
        raise ReleaseError("REL-008", what, why="Its cells or its trust are those of another study.", fix=_AS_WRITTEN)
    return replace(model, params=params)


def _same(one: object, other: object) -> bool:
    """Whether two values are the same in a file, where neither true is 1 nor 1 is 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


class _TwiceError(ValueError):
    """A key is there twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise _TwiceError
    return dict(pairs)


def _unreadable(what: str, why: str | None = None) -> ReleaseError:
    return ReleaseError("REL-005", f"release.json cannot be used: {what}.", why=why, fix=_AS_WRITTEN)
