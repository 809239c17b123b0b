"""A command line and its exit code: whatever is wrong with it, or goes wrong, and whoever ends it, gets a sentence and no traceback."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any

from cyclopts import App, CycloptsError, Parameter, Token, convert

from shoal.errors import ShoalError, UsageError
from shoal.names import shown


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, which does to a command what an interruption at the terminal does."""


def make_app(name: str, **how: Any) -> App:
    """An application without commands, whose options are read strictly."""
    # An interruption is ours to tell of: see `run`.
    read = Parameter(converter=_value)
    return App(name=name, help_format="markdown", default_parameter=read, suppress_keyboard_interrupt=False, **how)


def run(app: App, arguments: Sequence[str], tell: Callable[[ShoalError], None], fix: str) -> int:
    """Run a command line and return its exit code.

    Parameters
    ----------
    app, arguments
        What is run.
    tell
        Is told of an error.
    fix
        What to do about a command line that cannot be read.
    """
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except ShoalError as error:
        tell(error)
        return error.exit_code
    except CycloptsError as error:
        tell(UsageError("USAGE-001", " ".join(str(error).split()), fix=fix))
        return UsageError.exit_code
    except SystemExit as end:  # a verdict that is no error, such as an audit's
        return int(end.code or 0)
    except KeyboardInterrupt as error:
        return interrupted(error, tell)
    return 0


def interrupted(error: KeyboardInterrupt, tell: Callable[[ShoalError], None]) -> int:
    """Say so; the exit code is the one that shells give to whom a signal ends."""
    what = "Interrupted. Nothing is half-written."
    tell(ShoalError("USAGE-003", what, fix="The same command again: join, leave and serve go on where they were."))
    return 128 + (signal.SIGTERM if isinstance(error, TerminatedError) else signal.SIGINT)


def heed_termination() -> None:
    """Let whoever ends this process from outside do what an interruption does: nothing half-written, no child left behind."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, terminate)


def terminate(*_: object) -> None:
    """What SIGTERM does to a command."""
    raise TerminatedError


def _value(kind: Any, tokens: Sequence[Token]) -> Any:
    """What an option was given; whole numbers are never rounded to, as the parser would do."""
    if kind is int and any("." in token.value for token in tokens):
        raise ValueError(f"{shown(tokens[0].value)} is not a whole number.")
    return convert(kind, tokens)
