"""``shoal model``: show a learned model, predict with it, and export it.

Titles, names and values come from a file that anyone may have written. All of them are cleaned
before they are printed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from cyclopts import App

from shoal.cli.arguments import read_table
from shoal.cli.output import emit
from shoal.data.schema import Feature, Numeric
from shoal.errors import SpecError
from shoal.files import check_path_is_free, write_new
from shoal.models import export_json, export_onnx, load_model
from shoal.models.model import MODEL_KINDS, Guarantee, Model, count_unknown_cells
from shoal.models.weights import NamedWeight, get_label_shares, list_constants, list_largest_weights
from shoal.protocols.schema_json import describe_feature, describe_texts
from shoal.protocols.sdq.model import DecisionTree
from shoal.text import clean_text, escape_text, format_count, shell_quote

SIMULATED = "a simulation: it protects nothing"
UNKNOWN_ORIGIN = (
    "the file does not say if the model is simulated; a simulation would protect nothing"
)
_NO_STATEMENT = "none: the file contains no privacy statement"
_UNVERIFIED = "as stated in the file; not verified"

_SHOWN_LINES, _DATA_LINES = 40, 20_000
"""Most lines of a tree in the text, and in the JSON output."""
_MAX_DEPTH = 200
"""Most levels of a tree that are printed; the length of a line grows with the depth."""
_SHOWN_WEIGHTS, _DATA_WEIGHTS = 12, 40
"""Most weights in the text, and in the JSON output."""
_SHOWN_NAMES, _SHOWN_ROWS = 8, 5
"""Most features or classes that are listed, and most predicted rows."""

PredictedLabels = npt.NDArray[Any]
ClassProbabilities = npt.NDArray[np.float64] | None


def format_model(model: Model, path: Path) -> str:
    """Return the description of a model as text."""
    lines = [
        (
            "model",
            f"{escape_text(str(path))}: {MODEL_KINDS[model.kind].description} (kind {model.kind})",
        ),
        *(
            [("WARNING", SIMULATED)]
            if model.is_simulated
            else [("note", UNKNOWN_ORIGIN)]
            if model.is_simulated is None
            else []
        ),
        *([("study", clean_text(model.title))] if model.title else []),
        *([("digest", model.digest)] if model.digest else []),
        ("protocol", _describe_protocol(model)),
        ("predicts", _format_feature(model.label)),
        (
            "from",
            _format_list(
                [_format_feature(feature) for feature in model.schema.features]
                + [_format_text_feature(name) for name in _list_text_features(model)]
            ),
        ),
        *_format_guarantee(model),
        *([("shares", _format_shares(shares))] if (shares := get_label_shares(model)) else []),
    ]
    return "\n".join([*(f"{head:<10}{text}" for head, text in lines), *_format_contents(model)])


def make_model_data(model: Model) -> dict[str, Any]:
    """Return the description as plain data, with more weights than the text."""
    return {
        "kind": model.kind,
        "protocol": model.protocol,
        "variant": model.variant,
        "title": model.title,
        "digest": model.digest,
        "simulated": model.is_simulated,
        "label": describe_feature(model.label),
        "features": [describe_feature(feature) for feature in model.schema.features],
        "texts": describe_texts(model.schema),
        "guarantee": None
        if model.statement is None
        else str(Guarantee.model_validate(dict(model.statement))),
        "statement": model.statement,
        "label_shares": get_label_shares(model),
        "constants": [weight.to_dict() for weight in list_constants(model)],
        "weights": [weight.to_dict() for weight in list_largest_weights(model, _DATA_WEIGHTS)],
        "tree": _format_whole_tree(model.protocol_model)
        if isinstance(model.protocol_model, DecisionTree)
        else None,
    }


def _describe_protocol(model: Model) -> str:
    owners = MODEL_KINDS[model.kind].protocols
    name = model.protocol or f"{' or '.join(owners)} (the file does not say which)"
    return f"{name}, variant {model.variant}" if model.variant else name


def _format_guarantee(model: Model) -> list[tuple[str, str]]:
    if model.statement is None:
        return [("guarantee", _NO_STATEMENT)]
    stated = clean_text(str(Guarantee.model_validate(dict(model.statement))))
    if model.is_simulated:
        return [
            (
                "guarantee",
                f"none: this is a simulation; a real run of this study would state {stated}",
            )
        ]
    return [("guarantee", f"{stated}; {_UNVERIFIED}")]


def _format_feature(feature: Feature) -> str:
    if isinstance(feature, Numeric):
        return f"{clean_text(feature.name)} ({feature.low:.10g} to {feature.high:.10g})"
    n = len(feature.values)
    values = ", ".join(map(clean_text, feature.values)) if n <= 3 else format_count(n, "value")
    return f"{clean_text(feature.name)} ({values})"


def _list_text_features(model: Model) -> list[str]:
    return [text.name for text in model.schema.texts]


def _format_text_feature(name: str) -> str:
    return f"{clean_text(name)} (words)"


def _format_list(names: Sequence[str]) -> str:
    more = f", and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"{format_count(len(names), 'column')}: {', '.join(names[:_SHOWN_NAMES])}{more}"


def _format_shares(shares: Mapping[str, float]) -> str:
    largest = sorted(shares.items(), key=lambda item: -item[1])[:_SHOWN_NAMES]
    return ", ".join(f"{clean_text(name)} {100 * share:.1f} %" for name, share in largest) + (
        ", …" if len(shares) > _SHOWN_NAMES else ""
    )


def _format_contents(model: Model) -> list[str]:
    """Return the tree, or the largest weights."""
    if isinstance(model.protocol_model, DecisionTree):
        tree = model.protocol_model
        return [
            f"tree      {format_count(len(tree), 'node')}",
            *(f"  {line}" for line in format_tree(tree).splitlines()),
        ]
    weights = list_largest_weights(model, _SHOWN_WEIGHTS + 1)
    what = (
        "of each classifier in the vote"
        if model.kind == "vote"
        else "each with the class that it supports"
    )
    what = what if model.classes else "as shares of the label's range"
    more = "; --json prints more" if len(weights) > _SHOWN_WEIGHTS else ""
    lines = [
        _format_weight(weight)
        for weight in [*list_constants(model)[:_SHOWN_NAMES], *weights[:_SHOWN_WEIGHTS]]
    ]
    return [f"weights   the largest, {what}{more}", *lines]


def _format_weight(weight: NamedWeight) -> str:
    label = "" if weight.class_name is None else f"  {clean_text(weight.class_name)}"
    return f"  {weight.value:+.4f}{label}  {clean_text(weight.name)}"


def format_tree(tree: DecisionTree, n_lines: int = _SHOWN_LINES) -> str:
    """Return the tree as text, with all levels that fit into `n_lines`."""
    return tree.to_text(max_depth=_count_levels(tree, n_lines))


def _format_whole_tree(tree: DecisionTree) -> str:
    """Return the whole tree as text, or as many levels as a program can use."""
    return tree.to_text(max_depth=_count_levels(tree, _DATA_LINES), width=None, n_classes=None)


def _count_levels(tree: DecisionTree, n_lines: int) -> int:
    """Return how many levels below the root fit into `n_lines`, with one line for the noise.

    The tree is not formatted for this.
    """
    level, n_nodes, depth = [0], 1 + (tree.deviation is not None), 0
    while depth < _MAX_DEPTH:
        level = [child for node in level for child in tree.children(node)]
        n_nodes += len(level)
        if not level or n_nodes > n_lines:
            return depth
        depth += 1
    return depth


def format_predictions_csv(
    model: Model, labels: PredictedLabels, probabilities: ClassProbabilities
) -> str:
    """Return predictions as CSV with a header and a line for each row.

    Numbers are written so that they parse to the same double.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["predicted", *(f"chance of {value}" for value in model.classes)])
    rows = (
        [label, *line]
        for label, line in zip(
            labels.tolist(), _list_probabilities(labels, probabilities), strict=True
        )
    )
    writer.writerows(rows)
    return buffer.getvalue()


def _list_probabilities(
    labels: PredictedLabels, probabilities: ClassProbabilities
) -> list[list[float]]:
    return [[]] * len(labels) if probabilities is None else probabilities.tolist()


def make_predictions_data(
    model: Model,
    labels: PredictedLabels,
    probabilities: ClassProbabilities,
    unknown_cells: Mapping[str, int],
) -> dict[str, Any]:
    """Return a summary of predictions as plain data."""
    first = [
        {"predicted": label, "chances": dict(zip(model.classes, line, strict=True)) or None}
        for label, line in islice(
            zip(labels.tolist(), _list_probabilities(labels, probabilities), strict=True),
            _SHOWN_ROWS,
        )
    ]
    return {
        "rows": len(labels),
        "label": model.label.name,
        "predicted": _summarise_predictions(model, labels),
        "strange": dict(unknown_cells),
        "first": first,
    }


def _summarise_predictions(model: Model, labels: PredictedLabels) -> dict[str, float]:
    """Return the count of each class, or minimum, mean and maximum of numbers.

    The result is empty if there are no rows of numbers.
    """
    if model.classes:
        return {value: int(np.count_nonzero(labels == value)) for value in model.classes}
    return (
        {"least": float(labels.min()), "mean": float(labels.mean()), "largest": float(labels.max())}
        if len(labels)
        else {}
    )


def format_predictions(
    model: Model,
    labels: PredictedLabels,
    probabilities: ClassProbabilities,
    unknown_cells: Mapping[str, int],
    *,
    source: str,
    out: Path | None,
) -> str:
    """Return a summary of predictions as text."""
    lines = [f"rows      {format_count(len(labels), 'row')} of {escape_text(source)}"]
    summary = _summarise_predictions(model, labels)
    if model.classes:
        largest = sorted(summary.items(), key=lambda item: -item[1])[:_SHOWN_NAMES]
        lines.append(
            f"predicted {clean_text(model.label.name)}: "
            + ", ".join(f"{clean_text(value)} {n:,} times" for value, n in largest)
        )
    elif summary:
        lines.append(
            f"predicted {clean_text(model.label.name)}: "
            + ", ".join(f"{name} {number:.6g}" for name, number in summary.items())
        )
    if unknown_cells:
        cells = ", ".join(
            f"{clean_text(name)} {n:,}" for name, n in list(unknown_cells.items())[:_SHOWN_NAMES]
        )
        lines.append(
            "WARNING   cells outside the declared ranges and values were clipped or counted as "
            f"unknown: {cells}"
        )
    lines += (
        ["WARNING   the model comes from a simulation: it protects nothing"]
        if model.is_simulated
        else []
    )
    if out is not None:
        return "\n".join(
            [*lines, *_warn_about_formulas(model), f"wrote     {escape_text(str(out))}"]
        )
    shortened = None if probabilities is None else np.round(probabilities[:_SHOWN_ROWS], 4)
    head = format_predictions_csv(model, labels[:_SHOWN_ROWS], shortened).splitlines()
    return "\n".join([*lines, "", *map(escape_text, head)])


def _warn_about_formulas(model: Model) -> list[str]:
    """Return a warning if a spreadsheet would execute a class as a formula.

    The class is written unchanged, because programs compare it with labels.
    """
    formulas = [
        value
        for value in model.classes
        if len(value) > 1 and value[0] in "=+-@" and not _is_number(value)
    ]
    if not formulas:
        return []
    named = ", ".join(map(clean_text, formulas[:_SHOWN_NAMES]))
    return [
        f"WARNING   a spreadsheet may execute classes as formulas ({named}): open the file as "
        "text, not in a spreadsheet"
    ]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def format_export(model: Model, to: str, out: Path) -> str:
    """Return a description of the exported file."""
    lines = [
        f"wrote     {escape_text(str(out))}: {MODEL_KINDS[model.kind].description}, as "
        f"{'JSON' if to == 'json' else 'ONNX'}"
    ]
    if to == "onnx":
        probabilities = " and probabilities" if model.classes else ""
        lines.append(
            f"inputs    {_format_list([clean_text(name) for name in model.schema.names])}; "
            "shape (rows, 1), numbers as doubles"
        )
        lines.append(f"outputs   label{probabilities}")
    lines += [f"WARNING   {SIMULATED}; the file says so"] if model.is_simulated else []
    return "\n".join(lines)


app = App(
    name="model",
    help="Learned models: show, predict, export.",
    help_format="markdown",
)

_EXAMPLE_FILE = "rows.csv"


@app.command
def show(path: Path, /, *, svg: Path | None = None, json: bool = False) -> None:
    """Describe a model: label, features, kind, guarantee, and its weights or tree.

    Parameters
    ----------
    path
        The model: a model.json of shoal simulate or shoal join, a coordinator's result, or a file
        of shoal model export.
    svg
        A new file for a picture of the model, if it is a tree.
    json
        Print one JSON object.
    """
    model = load_model(path)
    if svg is not None:
        if not isinstance(model.protocol_model, DecisionTree):
            what = f"A model of the kind {model.kind} has no picture; only trees have one."
            raise SpecError("MODEL-002", what, fix="Omit --svg; the weights are printed.")
        write_new(svg, model.protocol_model.to_svg().encode())
    wrote = "" if svg is None else f"\nwrote     {escape_text(str(svg))}"
    data = make_model_data(model) | {"file": str(path), "svg": None if svg is None else str(svg)}
    emit(
        data,
        f"{format_model(model, path)}{wrote}",
        json=json,
        next_command=f"shoal model predict {shell_quote(path)} --data {_EXAMPLE_FILE}",
    )


@app.command
def predict(path: Path, /, *, data: str, out: Path | None = None, json: bool = False) -> None:
    """Predict the label of each row of a table, on this computer; no row is sent.

    Numbers outside their range are clipped, and categories that the model does not know count as
    unknown; the command prints how many. A value may be missing only if the study of the model
    allows it.

    Parameters
    ----------
    path
        The model.
    data
        A table (.csv, .csv.gz, .parquet, .db#table) with a column for each feature; the label and
        other columns are ignored.
    out
        A new CSV file: a line for each row, with the prediction and the probability of each class.
    json
        Print one JSON object.
    """
    model, columns = load_model(path), read_table(data)
    if out is not None:
        check_path_is_free(out)
    labels = model.predict(columns)
    probabilities = model.probabilities(columns) if model.classes else None
    unknown_cells = count_unknown_cells(model.schema, columns)
    base = f"shoal model predict {shell_quote(path)} --data {shell_quote(data)}"
    following = (
        f"{base} --out predictions.csv"
        if out is None
        else f"shoal model export {shell_quote(path)} --to onnx --out model.onnx"
    )
    if out is not None:
        write_new(out, format_predictions_csv(model, labels, probabilities).encode())
    summary = make_predictions_data(model, labels, probabilities, unknown_cells) | {
        "file": str(path),
        "data": data,
        "out": None if out is None else str(out),
    }
    emit(
        summary,
        format_predictions(model, labels, probabilities, unknown_cells, source=data, out=out),
        json=json,
        next_command=following,
    )


@app.command
def export(path: Path, /, *, to: Literal["json", "onnx"], out: Path, json: bool = False) -> None:
    """Export a model as JSON with a published schema, or as ONNX with the encoding of columns.

    Parameters
    ----------
    path
        The model.
    to
        json, or onnx.
    out
        A new file.
    json
        Print one JSON object.
    """
    model = load_model(path)
    check_path_is_free(out)
    write = export_json if to == "json" else export_onnx
    write(model, out)
    data = {
        "file": str(path),
        "to": to,
        "out": str(out),
        "bytes": out.stat().st_size,
        "kind": model.kind,
        "simulated": model.is_simulated,
    }
    following = (
        f"shoal model show {shell_quote(out)}"
        if to == "json"
        else f"shoal model predict {shell_quote(path)} --data {_EXAMPLE_FILE} --out predictions.csv"
    )
    emit(data, format_export(model, to, out), json=json, next_command=following)
