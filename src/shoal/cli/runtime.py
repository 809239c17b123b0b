"""Argument parsing, exit codes, signals, event loop, child processes.

`shoal.cli.main` runs every command here. An error or an interruption prints a sentence and never a
traceback. A signal ends the event loop between two steps, or immediately while the command waits
for a person.

``python -m shoal.cli.runtime MODULE ARGUMENTS...`` runs a module of shoal as a program that ends
when its parent process ends; `shoal.cli.hello.processes` starts it. Standard input is a pipe that
the parent keeps open while it lives, so the child ends even if the parent is killed.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from cyclopts import App, CycloptsError, Parameter, Token, convert

from shoal.errors import ShoalError, UsageError
from shoal.text import escape_text

GRACE_SECONDS = 5.0
"""Seconds between SIGTERM and a forced end of a child process."""


class TerminatedError(KeyboardInterrupt):
    """SIGTERM, which has the effect of an interruption at the terminal."""


def make_app(name: str, **settings: Any) -> App:
    """Return an application without commands and with strict options.

    No option has a generated negative (``--no-json``, ``--empty-sweep``). Commands and their
    subcommands inherit this. `run_app` reports interruptions, so the parser must not.
    """
    return App(
        name=name,
        help_format="markdown",
        default_parameter=Parameter(converter=_convert_option, negative=()),
        suppress_keyboard_interrupt=False,
        **settings,
    )


def run_app(
    app: App, arguments: Sequence[str], on_error: Callable[[ShoalError], None], fix: str
) -> int:
    """Run a command line and return its exit code.

    Parameters
    ----------
    on_error
        Callback that prints an error.
    fix
        Advice for a command line that cannot be parsed.
    """
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except ShoalError as error:
        on_error(error)
        return error.exit_code
    except CycloptsError as error:
        on_error(UsageError("USAGE-001", " ".join(str(error).split()), fix=fix))
        return UsageError.exit_code
    except SystemExit as end:  # a negative result that is not an error, such as an audit's
        return int(end.code or 0)
    except KeyboardInterrupt as error:
        return report_interruption(error, on_error)
    return 0


def report_interruption(error: KeyboardInterrupt, on_error: Callable[[ShoalError], None]) -> int:
    """Print that the command was interrupted, and return the exit code of the signal."""
    on_error(
        ShoalError(
            "USAGE-003",
            "Interrupted. No file is incomplete.",
            fix="Run the same command again: join, leave and serve resume.",
        )
    )
    return 128 + (signal.SIGTERM if isinstance(error, TerminatedError) else signal.SIGINT)


def install_sigterm_handler() -> None:
    """Treat SIGTERM as an interruption, so that no incomplete file or child process is left."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, raise_terminated)


def raise_terminated(*_: object) -> None:
    """Raise `TerminatedError`; the handler of SIGTERM."""
    raise TerminatedError


def _convert_option(kind: Any, tokens: Sequence[Token]) -> Any:
    """Return the value of an option; refuse fractions, which the parser would round."""
    if kind is int and any("." in token.value for token in tokens):
        raise ValueError(f"{escape_text(tokens[0].value)} is not a whole number.")
    return convert(kind, tokens)


T = TypeVar("T")
SignalHandler = Callable[[int, FrameType | None], object]


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, and cancel its task on SIGTERM.

    An exception from the signal handler inside a step of the loop would break the loop.
    """
    import asyncio  # late: `shoal --help` needs no event loop

    signals: list[int] = []

    async def run_until_terminated() -> T:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def cancel(number: int, _: object) -> None:
            signals.append(number)
            if len(signals) > 1:
                raise TerminatedError
            task.cancel()
            loop.call_soon_threadsafe(lambda: None)  # wakes the loop if it is waiting

        before = (
            signal.signal(signal.SIGTERM, cancel)
            if signal.getsignal(signal.SIGTERM) is raise_terminated
            else None
        )
        try:
            return await main
        finally:
            if before is not None:
                signal.signal(signal.SIGTERM, before)

    try:
        return asyncio.run(run_until_terminated())
    except asyncio.CancelledError:
        if not signals:
            raise
        raise TerminatedError from None


@contextmanager
def interrupt_immediately() -> Iterator[None]:
    """Let signals end a wait for a person immediately.

    Inside an event loop the first signal would otherwise take effect only after the wait.
    """
    handlers: dict[int, SignalHandler] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: raise_terminated,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_with_parent(pipe: int) -> None:
    """Wait until the pipe is closed, then end this process: SIGTERM first, then a forced exit."""
    import time

    while os.read(pipe, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def run_child(module: str, arguments: Sequence[str]) -> None:
    """Run a module as the main program until it ends or the parent process ends."""
    import runpy
    import threading

    threading.Thread(target=exit_with_parent, args=(0,), daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run_child(sys.argv[1], sys.argv[2:])
