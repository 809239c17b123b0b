"""``python -m seeded SEED OWNER COMMAND ...``: a command of shoal that draws from seeds, which shoal itself refuses.

What is replaced is where the commands take their randomness from, and the check that it is the system's. All else is as it is in earnest.
"""

from __future__ import annotations

import sys

from shoal.cli import identity, join
from shoal.cli.main import main
from shoal.participant import identity as keys
from shoal.participant import listening, offers, preview, runner
from streams import Streams


def seed(seed: str, owner: str) -> None:
    """Have the commands of a participant draw from seeds from now on."""
    for command in (join, identity):
        setattr(command, "SystemEntropy", lambda: Streams(seed, {listening.NAME: owner}))  # noqa: B010
    for module in (runner, offers, preview, keys):
        setattr(module, "require_system", lambda entropy: entropy)  # noqa: B010


if __name__ == "__main__":
    given = sys.argv[1:3]
    sys.argv = ["shoal", *sys.argv[3:]]
    seed(*given)
    main()
