"""A starter study from a file of data: its columns, written down with a warning that ranges were read from it."""

from __future__ import annotations

import json
import warnings

from shoal.domain import Categorical, Columns, Feature, Numeric, Schema, SchemaInferredWarning, cell_text
from shoal.errors import SpecError
from shoal.study.templates import study_text

MAX_VALUES = 100
"""A text column of more values than this looks like names or identifiers, and is left out."""
MAX_CLASSES = 20

WARNING = "Ranges and values were read from the data, which is not a private act. Replace them by public knowledge before use."


def study_like(columns: Columns, protocol: str) -> tuple[str, list[str]]:
    """The starter study of a protocol with the columns of a table, as TOML, and the names of columns that were left out.

    The last column is the label. Rows do not enter the text, but ranges and lists of values do.
    """
    *names, label_name = columns
    if not names:
        raise SpecError("DATA-007", "The file has a single column.", fix="Give one column per feature, and the label as the last one.")
    with warnings.catch_warnings():
        # The study itself says so, in capitals.
        warnings.simplefilter("ignore", SchemaInferredWarning)
        usable = {name: columns[name] for name in names if _is_usable(columns[name])}
        features = Schema.infer(usable).features if usable else ()
    if not features:
        raise SpecError("DATA-007", f"None of the {len(names)} columns is a number or a category of at most {MAX_VALUES} values.")
    head, _, rest = study_text(protocol).partition("\n[label]\n")
    tail = rest.partition("\n[privacy]\n")[2]
    label = _label(label_name, columns, protocol)
    warned = f"\n# READ FROM THE DATA: {WARNING}\n"
    blocks = "".join(f"\n[[feature]]\n{_keys(feature)}" for feature in features)
    return f"{head}\n{warned}\n[label]\n{_keys(label)}{blocks}\n[privacy]\n{tail}", [name for name in names if name not in usable]


def _is_usable(column: object) -> bool:
    texts = {cell_text(value) for value in column} - {None}  # type: ignore[attr-defined]
    return len(texts) <= MAX_VALUES or all(_reads_as_number(text) for text in texts)


def _reads_as_number(text: str | None) -> bool:
    try:
        float(text or "")
    except ValueError:
        return False
    return True


def _label(name: str, columns: Columns, protocol: str) -> Feature:
    values = sorted({text for text in map(cell_text, columns[name]) if text is not None})
    if 2 <= len(values) <= MAX_CLASSES:
        return Categorical(name, values, missing=False)
    if protocol in ("ddml", "pfds") and all(map(_reads_as_number, values)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SchemaInferredWarning)
            return Schema.infer({name: columns[name]}).features[0]
    raise SpecError(
        "DATA-007",
        f"The last column, {name}, is taken for the label, and has {len(values)} different values.",
        why=f"A label has 2 to {MAX_CLASSES} classes; ddml and pfds can also predict a number.",
        fix="Put the label in the last column.",
    )


def _keys(feature: Feature) -> str:
    """The lines of a feature or label; JSON's strings are TOML's."""
    lines = [f"name = {json.dumps(feature.name, ensure_ascii=False)}"]
    if isinstance(feature, Numeric):
        lines.append(f"range = [{feature.low!r}, {feature.high!r}]    # READ FROM THE DATA")
    else:
        lines.append(f"values = {json.dumps(list(feature.values), ensure_ascii=False)}    # READ FROM THE DATA")
    return "\n".join(lines) + "\n"
