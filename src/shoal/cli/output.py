"""How a command speaks: one JSON object for programs, or text that ends with the likely next command for people."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Mapping

from shoal.errors import ShoalError


def emit(data: Mapping[str, object], text: str, *, json: bool, next_command: str | None = None) -> None:
    """Print a command's result.

    Parameters
    ----------
    data
        The result as plain data.
    text
        The same for people.
    json
        Print ``data`` instead of ``text``.
    next_command
        What the reader will most likely want to type next.
    """
    if json:
        print(json_format.dumps(data, allow_nan=False))
        return
    print(text)
    if next_command:
        print(f"\nnext      {next_command}")


def emit_error(error: ShoalError, *, json: bool) -> None:
    """Print an error: as an object on standard output for programs, in sentences on standard error for people."""
    if json:
        print(json_format.dumps({"error": error.to_dict()}))
    else:
        print(error, file=sys.stderr)
