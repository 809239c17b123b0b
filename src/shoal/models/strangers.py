"""What of a table a model has not been told about: numbers outside their range, and categories that nobody declared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.cells import as_column, to_numbers, to_texts
from shoal.domain import Feature, Numeric, Schema


def strangers(schema: Schema, columns: Mapping[str, Any]) -> dict[str, int]:
    """For each feature that has some, how many of its cells prediction clips to the range or takes for unknown.

    Examples
    --------
    >>> from shoal.domain import Categorical
    >>> schema = Schema([Numeric("age", 17, 90), Categorical("sex", ["f", "m"])])
    >>> strangers(schema, {"age": [20, 130, None], "sex": ["f", "?", ""]})
    {'age': 1, 'sex': 1}
    """
    counts = {feature.name: _strange(feature, columns[feature.name]) for feature in schema.features}
    return {name: n for name, n in counts.items() if n}


def _strange(feature: Feature, column: Any) -> int:
    cells = as_column(feature.name, column)
    if isinstance(feature, Numeric):
        numbers = to_numbers(feature.name, cells)
        return int(np.count_nonzero((numbers < feature.low) | (numbers > feature.high)))
    known = {None, *feature.values}
    return sum(text not in known for text in to_texts(feature.name, cells))
