"""Entry point of ``python -m tools.reference``."""

from __future__ import annotations

import sys

from tools.reference import main

sys.exit(main())
