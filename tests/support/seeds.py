"""Run a command of shoal with seeded randomness, which shoal itself rejects.

``python -m tests.support.seeds SEED OWNER COMMAND ...``. Only the random source of the commands and
the check that it is the system's are replaced.
"""

from __future__ import annotations

import sys
from types import ModuleType

from shoal.cli import join
from shoal.cli.main import main
from shoal.participant import driver, keys, offers, runner, session
from tests.support.machines import Streams


def seed(seed: str, owner: str) -> None:
    """Make ``shoal join`` draw from seeds; ``shoal identity`` draws its keys from the system."""
    replace(join, "SystemEntropy", lambda: Streams(seed, {driver.PARTICIPANT_NAME: owner}))
    for module in (runner, offers, session, keys):
        replace(module, "require_system", lambda entropy: entropy)


def replace(module: ModuleType, name: str, value: object) -> None:
    """Replace a name that a module has; a renamed one would leave the command unseeded."""
    assert name in vars(module), f"{module.__name__} has no {name}"
    setattr(module, name, value)


if __name__ == "__main__":
    given = sys.argv[1:3]
    sys.argv = ["shoal", *sys.argv[3:]]
    seed(*given)
    main()
