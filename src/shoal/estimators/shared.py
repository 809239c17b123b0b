"""Released rows as whoever fitted them has their own: frames or arrays, and labels of one type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.domain import Columns
from shoal.names import counted


@dataclass(frozen=True, eq=False, repr=False)
class SharedDataset:
    """Rows that were shared. They are made up, and anyone may have them.

    Parameters
    ----------
    X
        The features, as a frame or an array of the kind that was fitted: categories as texts, numbers as floats.
    y
        The labels, of the type of those that were fitted.
    holder
        Whose rows stand behind them; None for the pool of all who share.
    """

    X: Any
    y: npt.NDArray[Any]
    holder: Any = None

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        n_rows, n_columns = self.X.shape
        return f"SharedDataset({counted(n_rows, 'row')}, {counted(n_columns, 'column')}, holder={self.holder!r})"


def frame_like(X: Any, columns: Columns) -> Any:
    """Columns as a frame of the library that X is of, or as an array where X is none."""
    if not hasattr(type(X), "columns"):
        return np.column_stack(list(columns.values()))
    import narwhals as nw

    parts = {name: column.tolist() if column.dtype == object else column for name, column in columns.items()}
    return nw.from_dict(parts, backend=nw.get_native_namespace(X)).to_native()
