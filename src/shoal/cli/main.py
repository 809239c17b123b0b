"""The table of commands, and the entry point.

A command is named by a string and imported when it is called, so that ``shoal --help`` is fast.
Options are read by one configuration for all commands: `shoal.cli.runtime.make_app`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cyclopts import App

from shoal import __version__
from shoal.cli import runtime
from shoal.cli.output import emit_error

COMMANDS = {
    "hello": (
        "shoal.cli.hello:hello",
        "Run a demonstration: four protocols on one population, a real study on this machine, a "
        "report.",
    ),
    "new": ("shoal.cli.new:new", "Write a starter study into a new directory."),
    "check": (
        "shoal.cli.check:check",
        "Validate a study, price every release, forecast its result, print its label.",
    ),
    "simulate": (
        "shoal.cli.simulate:simulate",
        "Simulate a study on a table, and compare the result with learning without privacy.",
    ),
    "compare": (
        "shoal.cli.compare:compare",
        "Compare all protocols that fit a study on the same rows.",
    ),
    "report": (
        "shoal.cli.report:report",
        "Write the results of runs as one HTML file with figures.",
    ),
    "statement": (
        "shoal.cli.statement:statement",
        "Write a one-page description of a study for sign-off.",
    ),
    "serve": (
        "shoal.cli.serve:serve",
        "Publish studies and coordinate them over HTTP until stopped.",
    ),
    "relay": (
        "shoal.cli.relay:relay",
        "Forward encrypted packets to a coordinator, which does not see who sent them.",
    ),
    "join": ("shoal.cli.join:join", "Take part in a study: read its label, agree, answer."),
    "close": (
        "shoal.cli.close:close",
        "End a study early, as its analyst.",
    ),
    "leave": ("shoal.cli.leave:leave", "Leave a study; sent data cannot be taken back."),
    "identity": (
        "shoal.cli.identity:identity",
        "Print your public key, for the roster of a study.",
    ),
    "ledger": (
        "shoal.cli.ledger:app",
        "Show the privacy budget that you have spent: show, page, verify, limit, export.",
    ),
    "release": (
        "shoal.cli.release:app",
        "Check a release of another holder; compare a release with real rows.",
    ),
    "model": ("shoal.cli.model:app", "Show a model, predict with it, export it."),
    "audit": (
        "shoal.cli.audit:app",
        "Measure a lower bound on epsilon and compare it with the claim.",
    ),
    "doctor": (
        "shoal.cli.doctor:app",
        "Find problems of this installation, or the real epsilon of another configuration.",
    ),
}

_HELP = "List the commands: shoal --help; list the options: shoal COMMAND --help"


def _make_app(chosen: str) -> App:
    """Return the commands with their summaries; the chosen one has its docstring instead."""
    app = runtime.make_app(
        "shoal",
        help="Learn from the shoal, not the fish: train a model on combined data without showing "
        "the rows to anyone.",
        version=__version__,
    )
    for name, (target, summary) in COMMANDS.items():
        app.command(target, name=name, help=None if name == chosen else summary)
    return app


def _has_json_option(arguments: Sequence[str]) -> bool:
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(option == "--json" or option.startswith("--json=") for option in options)


def run(arguments: Sequence[str]) -> int:
    """Run a command line, print errors as sentences, and return the exit code."""
    app = _make_app(arguments[0] if arguments else "")
    return runtime.run_app(
        app, arguments, partial(emit_error, json=_has_json_option(arguments)), _HELP
    )


def main() -> None:
    """Run ``shoal`` or ``python -m shoal`` and exit."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the parent process has closed it
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="backslashreplace")
    runtime.install_sigterm_handler()
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        code = _discard_output()
    except OSError as error:
        # Errors of files have their own sentences. Only printing the result can fail here.
        print(f"The result could not be printed: {error.strerror}.", file=sys.stderr)
        code = _discard_output()
    except KeyboardInterrupt as error:  # while the output is blocked
        code = runtime.report_interruption(error, partial(emit_error, json=False))
    sys.exit(code)


def _discard_output() -> int:
    """Discard output after the reader has closed the pipe, as in ``shoal ... | head``."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
