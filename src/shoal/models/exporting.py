"""Models written for other programs: JSON under a published schema, and ONNX."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import SpecError, UsageError
from shoal.models.files import write_new
from shoal.models.guarantee import Guarantee
from shoal.models.model import Model
from shoal.names import counted

if TYPE_CHECKING:
    from onnx import ModelProto

MOST_BYTES = (1 << 31) - 1
"""A file of ONNX cannot be larger than its container, protobuf, allows."""


def export_json(model: Model, path: str | Path) -> None:
    """Write a model with all that is known of it to a new file: JSON of the form that ``docs/reference/model.schema.json`` describes.

    Raises
    ------
    ShoalError
        ``NEW-001``: something is there already, or the file cannot be written.
    """
    write_new(Path(path), (json.dumps(model.to_document(), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def export_onnx(model: Model, path: str | Path) -> None:
    """Write a model to a new file as ONNX: an input for each column as it is in a table, the label and the chances as outputs.

    Parameters
    ----------
    model
        As `read_model` gives it; that of an estimator by ``read_model(estimator.model_.to_plain())``.
    path
        Where to write; nothing is overwritten.

    Raises
    ------
    ShoalError
        ``MODEL-002``: the model cannot be said in ONNX. ``USAGE-002``: the package onnx is not installed.
        ``NEW-001``: something is there already, or the file cannot be written.
    """
    write_new(Path(path), to_onnx(model).SerializeToString())


def to_onnx(model: Model) -> ModelProto:
    """The model as ONNX, without a file; see `export_onnx`."""
    if model.schema.texts:
        names = ", ".join(text.name for text in model.schema.texts)
        raise SpecError(
            "MODEL-002",
            f"This model reads texts ({names}), and cannot be exported to ONNX.",
            why="Their n-grams are hashed, and ONNX has no operation for that hash.",
            fix="Use shoal model predict, or --to json.",
        )
    make, check = _makers()
    proto = make(model, properties(model))
    if proto.ByteSize() > MOST_BYTES:
        what = f"This model takes {counted(proto.ByteSize(), 'byte')} as ONNX."
        raise SpecError("MODEL-002", what, why=f"Such a file has at most {MOST_BYTES:,}.", fix="Use shoal model predict, or --to json.")
    check(proto)
    return proto


def properties(model: Model) -> dict[str, str]:
    """What an ONNX file says about itself, by name: texts, empty where the model's own file does not say."""
    simulated = {True: "true", False: "false", None: "unknown"}[model.is_simulated]
    return {
        "title": model.title or "",
        "digest": model.digest or "",
        "protocol": model.protocol or "",
        "kind": model.kind,
        "simulated": simulated,
        "guarantee": "" if model.statement is None else str(Guarantee.model_validate(dict(model.statement))),
        "label": model.label.name,
        "classes": json.dumps(model.classes, ensure_ascii=False),
    }


def _makers() -> tuple[Callable[[Model, dict[str, str]], ModelProto], Callable[[ModelProto], None]]:
    try:
        from shoal.models.onnx_model import check, make
    except ImportError:
        raise UsageError("USAGE-002", "ONNX needs a package that is not installed.", fix="pip install 'shoal[onnx]'") from None
    return make, check
