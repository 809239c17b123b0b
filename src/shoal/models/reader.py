"""Strict reader of model files, and their JSON Schema.

``shoal model``, ``shoal report`` and the Python API read models here. A document is a simulation's
``model.json``, a coordinator's result, a release's ``release.json``, the output of
`shoal.models.export_json`, or a model alone. Anyone may have written it: all used fields are
validated and bounded, and other fields (counts, trees, rows of a result) are ignored.

``python -m shoal.models.reader`` prints the JSON Schema of an exported model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from shoal.errors import SpecError
from shoal.messages.base import Record, describe_validation_error
from shoal.models.model import FORMAT, MODEL_KINDS, VERSION, Guarantee, Model, ProtocolName
from shoal.protocols.anonml.model import _Additive, _Vote
from shoal.protocols.ddml.model import _Linear
from shoal.protocols.pfds.model import _PooledModelDocument
from shoal.protocols.schema_json import invalid_model_error
from shoal.protocols.sdq.model import _DecisionTreeDocument
from shoal.text import escape_text

MAX_BYTES = 1 << 28
"""Largest size of a file."""
MAX_VALUES = 20_000_000
"""Most values in a model and its statement, lists included."""
MAX_PARSED = 40_000_000
"""Most values in a whole file.

In memory an empty list takes twenty times its bytes in the file.
"""
MAX_COLUMNS = 20_000
"""Most features, texts or crosses of a model; a study has at most 2,000.

A reader of a model may compare each with all others.
"""
MAX_CHARACTERS = 10_000
"""Longest name or value in a model.

Descriptions repeat it for each node or weight.
"""
MAX_DEPTH = 16
"""Deepest nesting of lists and objects; no model has more than six levels."""

_FIX = (
    "Give an unchanged model.json of shoal simulate --out, shoal join --out, a coordinator or "
    "shoal model export."
)

VariantName = Literal["plus", "paper"]
_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Line = Annotated[str, Field(max_length=1000)]


class ModelOrigin(Record):
    """The provenance that a file states; other fields of a result or a release are ignored."""

    model_config = ConfigDict(extra="ignore")

    simulated: bool | None = None
    protocol: ProtocolName | None = None
    variant: VariantName | None = None
    title: _Line | None = None
    study: _Hex | None = None


class ModelDocument(Record):
    """All fields of an exported model; docs/reference/model.md explains them."""

    format: Literal["shoal model"]
    version: Literal[1]
    simulated: bool | None
    protocol: ProtocolName | None
    variant: VariantName | None
    title: _Line | None
    study: _Hex | None
    statement: Guarantee | None
    model: dict[str, Any]


def read_model(document: Mapping[str, Any]) -> Model:
    """Return the model in a parsed JSON document.

    Raises
    ------
    SpecError
        ``MODEL-001``: there is no model, it is inconsistent, or it exceeds a limit.
    """
    if not isinstance(document, Mapping):
        raise _make_model_error("it is not a JSON object")
    if "kind" in document:
        return _make_model(document, {}, None)
    if "points" in document or "entries" in document:
        raise _make_model_error("it is the record of a run; the model is in model.json next to it")
    if "model" not in document:
        raise _make_model_error("it has neither a kind nor a model")
    if document["model"] is None:
        raise _make_model_error("its study ended without a model")
    if document.get("format") == FORMAT:
        _check_document(document)
    origin = {
        **document,
        "simulated": document.get("simulated", document.get("simulation")),
        "model": None,
    }
    return _make_model(document["model"], origin, document.get("statement"))


def load_model(path: str | Path) -> Model:
    """Return the model in a file.

    Raises
    ------
    SpecError
        ``MODEL-001``: the file cannot be read, is too large or is not JSON, or it has no model.
    """
    path = Path(path)
    try:
        if path.is_dir():
            fix = f"Give a file, for example {escape_text(str(path / 'model.json'))}"
            raise SpecError(
                "MODEL-001", f"{escape_text(str(path))} is a directory, not a model.", fix=fix
            )
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or "this is not a valid file name"
        raise SpecError(
            "MODEL-001", f"{escape_text(str(path))} cannot be read: {reason}.", fix=_FIX
        ) from None
    if len(data) > MAX_BYTES:
        raise _make_model_error(f"{escape_text(path.name)} has more than {MAX_BYTES:,} bytes")
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_PARSED:
        raise _make_model_error(f"{escape_text(path.name)} has more than {MAX_PARSED:,} values")
    try:
        document = json.loads(
            data.decode(), parse_constant=_reject_constant, object_pairs_hook=_reject_duplicate_keys
        )
    except (ValueError, RecursionError):
        raise _make_model_error(f"{escape_text(path.name)} is not strict JSON in UTF-8") from None
    return read_model(document)


def _make_model(plain: object, origin: Mapping[str, Any], statement: object) -> Model:
    _check_bounds(plain, MAX_CHARACTERS)
    _check_bounds(statement)
    if (
        not isinstance(plain, Mapping)
        or not isinstance(kind := plain.get("kind"), str)
        or kind not in MODEL_KINDS
    ):
        raise _make_model_error(f"its kind is not one of {', '.join(MODEL_KINDS)}")
    for name in ("features", "texts", "crosses"):
        if isinstance(listed := plain.get(name), list) and len(listed) > MAX_COLUMNS:
            raise _make_model_error(f"it has more than {MAX_COLUMNS:,} {name}")
    try:
        provenance = ModelOrigin.model_validate(dict(origin))
        stated = None if statement is None else Guarantee.model_validate(statement)
        learned = MODEL_KINDS[kind].read(dict(plain))
    except ValidationError as error:
        raise _make_model_error(describe_validation_error(error)) from None
    except SpecError as error:
        # Errors in a schema have the codes of study files.
        raise (
            error if error.code == "MODEL-001" else _make_model_error(error.what.rstrip("."))
        ) from None
    owners = MODEL_KINDS[kind].protocols
    if provenance.protocol is not None and provenance.protocol not in owners:
        raise _make_model_error(f"{provenance.protocol} does not learn models of the kind {kind}")
    is_simulated = (
        provenance.simulated if stated is None or provenance.simulated else stated.simulated
    )
    return Model(
        learned,
        protocol=provenance.protocol or (owners[0] if len(owners) == 1 else None),
        variant=provenance.variant,
        title=provenance.title or (None if stated is None else stated.title[:1000]),
        digest=provenance.study,
        is_simulated=is_simulated,
        statement=statement if isinstance(statement, Mapping) else None,
    )


def _check_document(document: Mapping[str, Any]) -> None:
    """Validate all fields of an exported model before its parts are read."""
    if document.get("version") != VERSION:
        raise SpecError(
            "MODEL-001",
            f"The version of this model file is not {VERSION}, which this shoal reads.",
            fix="Upgrade shoal.",
        )
    _check_bounds(document)
    try:
        ModelDocument.model_validate(dict(document))
    except ValidationError as error:
        raise _make_model_error(describe_validation_error(error)) from None


def _check_bounds(value: object, max_characters: int = MAX_BYTES) -> None:
    """Raise ``MODEL-001`` for a value that is too deep, too large, or has invalid text.

    The check does not recurse, because a deep document would exhaust the stack.
    """
    level: list[object] = [value]
    n_values = 0
    for _ in range(MAX_DEPTH):
        n_values += len(level)
        if n_values > MAX_VALUES:
            raise _make_model_error(f"it has more than {MAX_VALUES:,} values")
        below: list[object] = []
        for item in level:
            if isinstance(item, Mapping):
                below += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple):
                below += item
            elif isinstance(item, str) and len(item) > max_characters:
                raise _make_model_error(f"it has a text of more than {max_characters:,} characters")
            elif isinstance(item, str) and not _is_valid_text(item):
                raise _make_model_error("it has a text with a lone surrogate")
        if not below:
            return
        level = below
    raise _make_model_error(f"its lists and objects are nested more than {MAX_DEPTH} deep")


def _is_valid_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _reject_constant(name: str) -> float:
    raise ValueError(name)


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's content; raise `ValueError` for a duplicate key.

    Two readers of an object with a duplicate key could see different models.
    """
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("duplicate key")
    return content


def _make_model_error(what: str) -> SpecError:
    return SpecError("MODEL-001", invalid_model_error(what).what, fix=_FIX)


# The schema is made from the records that the readers use, so that the two cannot differ.

_PUBLISHED_NAMES = {
    "_Additive": "Additive",
    "_Vote": "Vote",
    "_Linear": "Linear",
    "_PooledModelDocument": "Pooled",
    "_DecisionTreeDocument": "Tree",
    "_ClassifierRecord": "Classifier",
    "ShuffledPrice": "Crowd",
}


class _FullModelDocument(ModelDocument):
    model: Annotated[
        _Additive | _Vote | _Linear | _DecisionTreeDocument | _PooledModelDocument,
        Field(discriminator="kind"),
    ]  # type: ignore[assignment]


def make_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of an exported model.

    It does not express that the sizes of tables must match.
    """
    schema = _FullModelDocument.model_json_schema()
    # The models come last, and renaming a record in Python does not change the order.
    names = sorted(
        schema["$defs"],
        key=lambda name: (name.startswith("_"), _PUBLISHED_NAMES.get(name, name)),
    )
    schema["$defs"] = {name: schema["$defs"][name] for name in names}
    schema = _apply_published_names(schema)
    for name, kind in MODEL_KINDS.items():
        schema["$defs"][name.capitalize()]["description"] = f"Kind {name}: {kind.description}."
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "shoal model",
        "description": "A model as `shoal model export --to json` writes it. The reader also "
        "enforces rules that this schema cannot express.",
    }


def _apply_published_names(part: Any) -> Any:
    """Return the schema with published names for records, and without titles.

    Names of Python records begin with an underscore, and pydantic gives every field a title.
    """
    if isinstance(part, list):
        return [_apply_published_names(item) for item in part]
    if isinstance(part, str):
        head, slash, name = part.rpartition("/")
        return f"{head}{slash}{_PUBLISHED_NAMES.get(name, name)}"
    if not isinstance(part, dict):
        return part
    kept = {
        key: value for key, value in part.items() if key != "title" or not isinstance(value, str)
    }
    return {
        _PUBLISHED_NAMES.get(key, key): _apply_published_names(value) for key, value in kept.items()
    }


if __name__ == "__main__":
    print(json.dumps(make_json_schema(), indent=2, ensure_ascii=False))
