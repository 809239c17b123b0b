"""The interface between ``shoal simulate`` and one protocol.

`shoal.cli.simulate.ddml`, `sdq` and `pfds` define a `ProtocolView`; `shoal.cli.simulate.view` has
the table of them. AnonML needs no lines about its model, and has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.simulation.run import RunTask, Split
from shoal.study.spec import Study


@dataclass(frozen=True)
class ProtocolView:
    """What ``shoal simulate`` shows and writes for one protocol.

    Parameters
    ----------
    format_model_lines
        Return the lines about what is learned.
    write_releases
        Write the releases of a run into a directory; None for a protocol without releases.
    has_devices
        Whether the options for devices apply: ``--in-flight``, ``--order`` and ``--device``.
    """

    name: str
    format_model_lines: Callable[[Mapping[str, Any]], list[str]]
    write_releases: Callable[[Path, Study, RunTask, Split], None] | None = None
    has_devices: bool = False


def format_percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.0f} %"
