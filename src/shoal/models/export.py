"""Export a model as JSON under a published schema, or as ONNX.

``shoal model export`` and the Python API call these functions. `to_onnx` needs the extra ``onnx``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import SpecError, require_extra
from shoal.files import write_new
from shoal.models.model import Guarantee, Model
from shoal.text import format_count

if TYPE_CHECKING:
    from onnx import ModelProto

MAX_ONNX_BYTES = (1 << 31) - 1
"""Largest size of an ONNX file, a limit of protobuf."""


def export_json(model: Model, path: str | Path) -> None:
    """Write a model with its provenance to a new JSON file.

    ``docs/reference/model.schema.json`` describes the form.

    Raises
    ------
    ShoalError
        ``NEW-001``: the path is taken, or the file cannot be written.
    """
    write_new(
        Path(path),
        (
            json.dumps(model.to_document(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        ).encode(),
    )


def export_onnx(model: Model, path: str | Path) -> None:
    """Write a model to a new ONNX file.

    The file has an input for each column of a table, with the cells unencoded. The outputs are the
    label and the probabilities.

    Parameters
    ----------
    model
        A model from `read_model`; for an estimator, ``read_model(estimator.model_.to_plain())``.

    Raises
    ------
    ShoalError
        ``MODEL-002``: ONNX cannot represent the model. ``USAGE-002``: the package onnx is not
        installed. ``NEW-001``: the path is taken, or the file cannot be written.
    """
    write_new(Path(path), to_onnx(model).SerializeToString())


def to_onnx(model: Model) -> ModelProto:
    """Return the model as ONNX; see `export_onnx`."""
    if model.schema.texts:
        names = ", ".join(text.name for text in model.schema.texts)
        raise SpecError(
            "MODEL-002",
            f"This model has text features ({names}) and cannot be exported to ONNX.",
            why="Their n-grams are hashed, and ONNX has no operator for this hash.",
            fix="Use shoal model predict, or --to json.",
        )
    make, check = _load_onnx()
    proto = make(model, make_properties(model))
    if proto.ByteSize() > MAX_ONNX_BYTES:
        what = f"This model has {format_count(proto.ByteSize(), 'byte')} as ONNX."
        raise SpecError(
            "MODEL-002",
            what,
            why=f"An ONNX file has at most {MAX_ONNX_BYTES:,}.",
            fix="Use shoal model predict, or --to json.",
        )
    check(proto)
    return proto


def make_properties(model: Model) -> dict[str, str]:
    """Return the metadata of an ONNX file as texts; empty if the model does not state it."""
    simulated = {True: "true", False: "false", None: "unknown"}[model.is_simulated]
    return {
        "title": model.title or "",
        "digest": model.digest or "",
        "protocol": model.protocol or "",
        "kind": model.kind,
        "simulated": simulated,
        "guarantee": ""
        if model.statement is None
        else str(Guarantee.model_validate(dict(model.statement))),
        "label": model.label.name,
        "classes": json.dumps(model.classes, ensure_ascii=False),
    }


def _load_onnx() -> tuple[
    Callable[[Model, dict[str, str]], ModelProto], Callable[[ModelProto], None]
]:
    require_extra("onnx", "onnx", purpose="ONNX")
    from shoal.models.onnx import check_onnx_model, make_onnx_model

    return make_onnx_model, check_onnx_model
