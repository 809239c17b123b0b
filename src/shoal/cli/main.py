"""The table of commands. Each is named by a string and imported when it is called, so that ``shoal --help`` stays quick."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cyclopts import App

from shoal import __version__, command_lines
from shoal.cli.output import emit_error

COMMANDS = {
    "hello": ("shoal.cli.hello:hello", "The demonstration: four protocols on one population, a real study on this machine, a report."),
    "new": ("shoal.cli.new:new", "Write a starter study into a new directory."),
    "check": ("shoal.cli.check:check", "Validate a study, price every release, forecast what it learns, print its label."),
    "simulate": ("shoal.cli.simulate:simulate", "Simulate a study on a table: what would be learned, beside no privacy."),
    "compare": ("shoal.cli.compare:compare", "Every protocol that fits a study, side by side on the same rows."),
    "report": ("shoal.cli.report:report", "Write what runs have shown as one HTML file, with figures."),
    "statement": ("shoal.cli.statement:statement", "Write a study on one page, for those who must sign it off."),
    "serve": ("shoal.cli.serve:serve", "Publish studies, and coordinate them over HTTP until told to stop."),
    "relay": ("shoal.cli.relay:relay", "Take sealed packets for a coordinator, so that it does not see who sends them."),
    "join": ("shoal.cli.join:join", "Take part in a study: read its label, agree, answer."),
    "close": ("shoal.cli.close:close", "End a study of a coordinator before its time, as its analyst."),
    "leave": ("shoal.cli.leave:leave", "Leave a study; what was already sent stays sent."),
    "identity": ("shoal.cli.identity:identity", "Print your public key, for the roster of a study."),
    "ledger": ("shoal.cli.ledger:app", "What was spent, on what, for whom: show, page, verify, limit, export."),
    "release": ("shoal.cli.release:app", "Check a release of another holder; compare one with real rows."),
    "model": ("shoal.cli.model:app", "What was learned: show it, predict with it, export it."),
    "audit": ("shoal.cli.audit:app", "Measure a lower bound on epsilon and hold it against the claim."),
    "doctor": ("shoal.cli.doctor:app", "What is missing here, and how to mend it; what a configuration's epsilon really is."),
}

_HELP = "shoal --help lists the commands, shoal COMMAND --help their options."


def _app(chosen: str) -> App:
    """The commands, each with its summary; the chosen one speaks for itself, by its docstring."""
    app = command_lines.make_app(
        "shoal",
        help="Learn from the shoal, not the fish: train models together on sensitive rows without trusting anyone with them.",
        version=__version__,
    )
    for name, (target, summary) in COMMANDS.items():
        app.command(target, name=name, help=None if name == chosen else summary)
    return app


def _is_for_programs(arguments: Sequence[str]) -> bool:
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(option == "--json" or option.startswith("--json=") for option in options)


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; errors are printed in sentences."""
    app = _app(arguments[0] if arguments else "")
    return command_lines.run(app, arguments, partial(emit_error, json=_is_for_programs(arguments)), _HELP)


def main() -> None:
    """The entry point of ``shoal`` and of ``python -m shoal``."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us: there is nobody to speak to
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - it lives as long as we do
        getattr(sys, name).reconfigure(errors="backslashreplace")
    command_lines.heed_termination()
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        code = _hang_up()
    except OSError as error:
        # Every file of ours is written with errors of its own; what is left is that the result could not be printed.
        print(f"The result could not be printed: {error.strerror}.", file=sys.stderr)
        code = _hang_up()
    except KeyboardInterrupt as error:  # while the result waits for its reader
        code = command_lines.interrupted(error, partial(emit_error, json=False))
    sys.exit(code)


def _hang_up() -> int:
    """Whoever read our output has gone, as in `shoal ... | head`: let nothing be flushed again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
