"""What ``shoal model`` prints, as text and as plain data. Titles, names and values come from a file that anyone may have written."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Feature, Numeric
from shoal.models.guarantee import Guarantee
from shoal.models.model import KINDS, Model
from shoal.models.weights import Weight, constants, label_shares, largest
from shoal.names import counted, shown
from shoal.protocols.model_files import describe, describe_texts
from shoal.protocols.sdq.model import Tree
from shoal.study.typeset import clean

SIMULATED = "a simulation: nothing was protected by it"
UNKNOWN = "the file does not say whether it comes of a simulation, by which nothing would be protected"
_NO_STATEMENT = "none is stated in this file, and so none may be claimed for the model"
_BY_ITS_WORD = "by the file's own word, which nothing in it proves"

_LINES, _ALL_LINES = 40, 20_000
"""So many lines of a tree are shown, and given to programs."""
_DEEPEST = 200
"""A line is as long as its node is deep: of a tree that is nothing but deep, no more levels are written."""
_WEIGHTS, _KEPT = 12, 40
"""So many weights are shown, and given to programs."""
_NAMES, _FIRST = 8, 5
"""So many features or classes are listed, and predicted rows shown."""

Labels = npt.NDArray[Any]
Chances = npt.NDArray[np.float64] | None


def described(model: Model, path: Path) -> str:
    """A model in words."""
    lines = [
        ("model", f"{shown(str(path))}: {KINDS[model.kind].words} (kind {model.kind})"),
        *([("WARNING", SIMULATED)] if model.is_simulated else [("note", UNKNOWN)] if model.is_simulated is None else []),
        *([("study", clean(model.title))] if model.title else []),
        *([("digest", model.digest)] if model.digest else []),
        ("protocol", _protocol(model)),
        ("predicts", _feature(model.label)),
        ("from", _listed([_feature(feature) for feature in model.schema.features] + [_text(name) for name in _texts(model)])),
        *_guarantee_lines(model),
        *([("shares", _shares(shares))] if (shares := label_shares(model)) else []),
    ]
    return "\n".join([*(f"{head:<10}{text}" for head, text in lines), *_inside(model)])


def described_data(model: Model) -> dict[str, Any]:
    """A model as plain data: all that the text says, and more weights."""
    return {
        "kind": model.kind,
        "protocol": model.protocol,
        "variant": model.variant,
        "title": model.title,
        "digest": model.digest,
        "simulated": model.is_simulated,
        "label": describe(model.label),
        "features": [describe(feature) for feature in model.schema.features],
        "texts": describe_texts(model.schema),
        "guarantee": None if model.statement is None else str(Guarantee.model_validate(dict(model.statement))),
        "statement": model.statement,
        "label_shares": label_shares(model),
        "constants": [weight.to_dict() for weight in constants(model)],
        "weights": [weight.to_dict() for weight in largest(model, _KEPT)],
        "tree": _whole(model.learned) if isinstance(model.learned, Tree) else None,
    }


def _protocol(model: Model) -> str:
    owners = KINDS[model.kind].protocols
    name = model.protocol or f"{' or '.join(owners)} (the file does not say which)"
    return f"{name}, variant {model.variant}" if model.variant else name


def _guarantee_lines(model: Model) -> list[tuple[str, str]]:
    if model.statement is None:
        return [("guarantee", _NO_STATEMENT)]
    stated = clean(str(Guarantee.model_validate(dict(model.statement))))
    if model.is_simulated:
        return [("guarantee", f"none, for nothing was protected; a real run of this study would state {stated}")]
    return [("guarantee", f"{stated}; {_BY_ITS_WORD}")]


def _feature(feature: Feature) -> str:
    if isinstance(feature, Numeric):
        return f"{clean(feature.name)} ({feature.low:.10g} to {feature.high:.10g})"
    few = len(feature.values) <= 3
    return f"{clean(feature.name)} ({', '.join(map(clean, feature.values)) if few else counted(len(feature.values), 'value')})"


def _texts(model: Model) -> list[str]:
    return [text.name for text in model.schema.texts]


def _text(name: str) -> str:
    return f"{clean(name)} (words)"


def _listed(names: Sequence[str]) -> str:
    more = f", and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return f"{counted(len(names), 'column')}: {', '.join(names[:_NAMES])}{more}"


def _shares(shares: Mapping[str, float]) -> str:
    most = sorted(shares.items(), key=lambda item: -item[1])[:_NAMES]
    return ", ".join(f"{clean(name)} {100 * share:.1f} %" for name, share in most) + (", …" if len(shares) > _NAMES else "")


def _inside(model: Model) -> list[str]:
    """The tree, or the largest weights."""
    if isinstance(model.learned, Tree):
        tree = model.learned
        return [f"tree      {counted(len(tree), 'node')}", *(f"  {line}" for line in in_short(tree).splitlines())]
    found = largest(model, _WEIGHTS + 1)
    what = "of each classifier in the vote" if model.kind == "vote" else "each with the class that it speaks for"
    what = what if model.classes else "in shares of the label's range"
    more = "; --json prints more" if len(found) > _WEIGHTS else ""
    lines = [_weight(weight) for weight in [*constants(model)[:_NAMES], *found[:_WEIGHTS]]]
    return [f"weights   the largest, {what}{more}", *lines]


def _weight(weight: Weight) -> str:
    of = "" if weight.of is None else f"  {clean(weight.of)}"
    return f"  {weight.value:+.4f}{of}  {clean(weight.name)}"


def in_short(tree: Tree, n_lines: int = _LINES) -> str:
    """The tree as text, down to the last level with which it still fits."""
    return tree.to_text(max_depth=_levels(tree, n_lines))


def _whole(tree: Tree) -> str:
    """All of the tree as text, or of one that nobody reads as much as fits."""
    return tree.to_text(max_depth=_levels(tree, _ALL_LINES), width=None, n_classes=None)


def _levels(tree: Tree, n_lines: int) -> int:
    """How many levels below the root have at most so many lines, with one for the noise; a tree is not written to find that out."""
    level, n_nodes, depth = [0], 1 + (tree.deviation is not None), 0
    while depth < _DEEPEST:
        level = [child for node in level for child in tree.children(node)]
        n_nodes += len(level)
        if not level or n_nodes > n_lines:
            return depth
        depth += 1
    return depth


def predicted_csv(model: Model, labels: Labels, chances: Chances) -> str:
    """Predictions as CSV: a line for each row, under names of columns. Numbers read back to the same double."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["predicted", *(f"chance of {value}" for value in model.classes)])
    rows = ([label, *line] for label, line in zip(labels.tolist(), _lines(labels, chances), strict=True))
    writer.writerows(rows)
    return buffer.getvalue()


def _lines(labels: Labels, chances: Chances) -> list[list[float]]:
    return [[]] * len(labels) if chances is None else chances.tolist()


def predicted_data(model: Model, labels: Labels, chances: Chances, strange: Mapping[str, int]) -> dict[str, Any]:
    """Predictions in short, as plain data."""
    first = [
        {"predicted": label, "chances": dict(zip(model.classes, line, strict=True)) or None}
        for label, line in islice(zip(labels.tolist(), _lines(labels, chances), strict=True), _FIRST)
    ]
    return {"rows": len(labels), "label": model.label.name, "predicted": _summary(model, labels), "strange": dict(strange), "first": first}


def _summary(model: Model, labels: Labels) -> dict[str, float]:
    """How often each class is predicted, or the least, mean and largest number; nothing of no rows."""
    if model.classes:
        return {value: int(np.count_nonzero(labels == value)) for value in model.classes}
    return {"least": float(labels.min()), "mean": float(labels.mean()), "largest": float(labels.max())} if len(labels) else {}


def predicted(model: Model, labels: Labels, chances: Chances, strange: Mapping[str, int], *, source: str, out: Path | None) -> str:
    """Predictions in short, in words."""
    lines = [f"rows      {counted(len(labels), 'row')} of {shown(source)}"]
    summary = _summary(model, labels)
    if model.classes:
        told = sorted(summary.items(), key=lambda item: -item[1])[:_NAMES]
        lines.append(f"predicted {clean(model.label.name)}: " + ", ".join(f"{clean(value)} {n:,} times" for value, n in told))
    elif summary:
        lines.append(f"predicted {clean(model.label.name)}: " + ", ".join(f"{name} {number:.6g}" for name, number in summary.items()))
    if strange:
        cells = ", ".join(f"{clean(name)} {n:,}" for name, n in list(strange.items())[:_NAMES])
        lines.append(f"WARNING   cells outside what the model knows were clipped or taken for unknown: {cells}")
    lines += [f"WARNING   the model comes of {SIMULATED}"] if model.is_simulated else []
    if out is not None:
        return "\n".join([*lines, *_formulas(model), f"wrote     {shown(str(out))}"])
    shortened = None if chances is None else np.round(chances[:_FIRST], 4)
    head = predicted_csv(model, labels[:_FIRST], shortened).splitlines()
    return "\n".join([*lines, "", *map(shown, head)])


def _formulas(model: Model) -> list[str]:
    """A warning where a spreadsheet would run a class. It is written as it is all the same: programs hold it against labels."""
    found = [value for value in model.classes if len(value) > 1 and value[0] in "=+-@" and not _is_number(value)]
    if not found:
        return []
    named = ", ".join(map(clean, found[:_NAMES]))
    return [f"WARNING   a spreadsheet may run classes as formulas ({named}): open the file as text, not in a spreadsheet"]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def exported(model: Model, to: str, out: Path) -> str:
    """What was written, in words."""
    lines = [f"wrote     {shown(str(out))}: {KINDS[model.kind].words}, as {'JSON' if to == 'json' else 'ONNX'}"]
    if to == "onnx":
        chances = " and probabilities" if model.classes else ""
        lines.append(f"inputs    {_listed([clean(name) for name in model.schema.names])}; of shape (rows, 1), numbers as doubles")
        lines.append(f"outputs   label{chances}")
    lines += [f"WARNING   {SIMULATED}; the file says so too"] if model.is_simulated else []
    return "\n".join(lines)
