"""Entry point of ``python -m tools.vectors``."""

from __future__ import annotations

import sys

from tools.vectors import FILES, render_file
from tools.vectors.base import DIRECTORY

for name in FILES:
    (DIRECTORY / name).write_text(render_file(name))
    print(f"wrote {name}", file=sys.stderr)
