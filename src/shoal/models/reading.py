"""Reading a model from plain data that anyone may have written, in any form that it comes in.

A simulation's ``model.json``, a coordinator's result, a release's ``release.json``, what `shoal.models.export_json` wrote, or a bare
model: what is read is checked strictly, what is not needed (counts, trees, rows of a result) is not looked at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from shoal.errors import SpecError
from shoal.messages.base import Record
from shoal.messages.base import describe as fault_of
from shoal.models.guarantee import Guarantee
from shoal.models.model import FORMAT, KINDS, VERSION, Model
from shoal.names import shown
from shoal.protocols.model_files import unfit

MAX_BYTES = 1 << 28
"""Most bytes of a file."""
MAX_VALUES = 20_000_000
"""Most values of a model and its statement, lists included."""
MAX_PARSED = 40_000_000
"""Most values of a whole file: in memory an empty list takes twenty times the bytes that it has in the file."""
MAX_COLUMNS = 20_000
"""Most features, texts or crosses of a model; a study has at most 2,000. What reads a model may hold each against all others."""
MAX_LETTERS = 10_000
"""Most letters of a name or value in a model: a description repeats them for each node or weight."""
MAX_DEPTH = 16
"""Most lists and objects inside each other; no model has more than six."""

_AS_WRITTEN = "Give a model.json as it was written by shoal simulate --out, shoal join --out, a coordinator or shoal model export."

Protocol = Literal["anonml", "ddml", "sdq", "pfds"]
Variant = Literal["plus", "paper"]
_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Line = Annotated[str, Field(max_length=1000)]


class Origin(Record):
    """What a file says about where its model comes from; the rest of a coordinator's result or a release is left alone."""

    model_config = ConfigDict(extra="ignore")

    simulated: bool | None = None
    protocol: Protocol | None = None
    variant: Variant | None = None
    title: _Line | None = None
    study: _Hex | None = None


class Document(Record):
    """All fields of an exported model; docs/reference/model.md explains them."""

    format: Literal["shoal model"]
    version: Literal[1]
    simulated: bool | None
    protocol: Protocol | None
    variant: Variant | None
    title: _Line | None
    study: _Hex | None
    statement: Guarantee | None
    model: dict[str, Any]


def read_model(document: Mapping[str, Any]) -> Model:
    """The model in a document that was parsed from JSON.

    Raises
    ------
    SpecError
        ``MODEL-001``: there is none, it does not fit together, or it is larger or deeper than any model.
    """
    if not isinstance(document, Mapping):
        raise _refused("it is not a JSON object")
    if "kind" in document:
        return _model(document, {}, None)
    if "points" in document or "entries" in document:
        raise _refused("it is the record of a run; the model is in model.json beside it")
    if "model" not in document:
        raise _refused("it has neither a kind nor a model")
    if document["model"] is None:
        raise _refused("its study ended without one, or released none")
    if document.get("format") == FORMAT:
        _check_document(document)
    origin = {**document, "simulated": document.get("simulated", document.get("simulation")), "model": None}
    return _model(document["model"], origin, document.get("statement"))


def load_model(path: str | Path) -> Model:
    """The model in a file.

    Raises
    ------
    SpecError
        ``MODEL-001``: there is no such file, it is too large or no JSON, or there is no model in it.
    """
    path = Path(path)
    try:
        if path.is_dir():
            fix = f"Give a file, such as {shown(str(path / 'model.json'))}"
            raise SpecError("MODEL-001", f"{shown(str(path))} is a directory, not a model.", fix=fix)
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "no file has such a name"
        raise SpecError("MODEL-001", f"{shown(str(path))} cannot be read: {reason}.", fix=_AS_WRITTEN) from None
    if len(data) > MAX_BYTES:
        raise _refused(f"{shown(path.name)} has more than {MAX_BYTES:,} bytes")
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_PARSED:
        raise _refused(f"{shown(path.name)} has more than {MAX_PARSED:,} values")
    try:
        document = json.loads(data.decode(), parse_constant=_refuse_constant, object_pairs_hook=_each_once)
    except (ValueError, RecursionError):
        raise _refused(f"{shown(path.name)} is not strict JSON in UTF-8") from None
    return read_model(document)


def _model(plain: object, origin: Mapping[str, Any], statement: object) -> Model:
    _check_bounds(plain, MAX_LETTERS)
    _check_bounds(statement)
    if not isinstance(plain, Mapping) or not isinstance(kind := plain.get("kind"), str) or kind not in KINDS:
        raise _refused(f"its kind is none of {', '.join(KINDS)}")
    for name in ("features", "texts", "crosses"):
        if isinstance(listed := plain.get(name), list) and len(listed) > MAX_COLUMNS:
            raise _refused(f"it has more than {MAX_COLUMNS:,} {name}")
    try:
        said = Origin.model_validate(dict(origin))
        stated = None if statement is None else Guarantee.model_validate(statement)
        learned = KINDS[kind].read(dict(plain))
    except ValidationError as error:
        raise _refused(fault_of(error)) from None
    except SpecError as error:
        # A schema that cannot be has a code of its own, for studies.
        raise error if error.code == "MODEL-001" else _refused(error.what.rstrip(".")) from None
    owners = KINDS[kind].protocols
    if said.protocol is not None and said.protocol not in owners:
        raise _refused(f"{said.protocol} does not learn models of the kind {kind}")
    is_simulated = said.simulated if stated is None or said.simulated else stated.simulated
    return Model(
        learned,
        protocol=said.protocol or (owners[0] if len(owners) == 1 else None),
        variant=said.variant,
        title=said.title or (None if stated is None else stated.title[:1000]),
        digest=said.study,
        is_simulated=is_simulated,
        statement=statement if isinstance(statement, Mapping) else None,
    )


def _check_document(document: Mapping[str, Any]) -> None:
    """Hold an exported model to all of its form, before its parts are read."""
    if document.get("version") != VERSION:
        raise SpecError("MODEL-001", "This model is of a version of the format that is not known here.", fix="Upgrade shoal.")
    _check_bounds(document)
    try:
        Document.model_validate(dict(document))
    except ValidationError as error:
        raise _refused(fault_of(error)) from None


def _check_bounds(value: object, max_letters: int = MAX_BYTES) -> None:
    """Refuse what is too deep, too large, or text that no file can hold; without recursion, which a deep document would exhaust."""
    level: list[object] = [value]
    n_values = 0
    for _ in range(MAX_DEPTH):
        n_values += len(level)
        if n_values > MAX_VALUES:
            raise _refused(f"it has more than {MAX_VALUES:,} values")
        below: list[object] = []
        for one in level:
            if isinstance(one, Mapping):
                below += [*one.keys(), *one.values()]
            elif isinstance(one, list | tuple):
                below += one
            elif isinstance(one, str) and len(one) > max_letters:
                raise _refused(f"it holds a text of more than {max_letters:,} letters")
            elif isinstance(one, str) and not _is_text(one):
                raise _refused("it holds half of a pair of code units, which is no text")
        if not below:
            return
        level = below
    raise _refused(f"more than {MAX_DEPTH} lists and objects are inside each other")


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_constant(name: str) -> float:
    raise ValueError(name)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's content; two readers of one with a key twice might see two models."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key is there twice")
    return content


def _refused(what: str) -> SpecError:
    return SpecError("MODEL-001", unfit(what).what, fix=_AS_WRITTEN)
