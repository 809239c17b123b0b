"""The page of commands, generated from their docstrings and options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from cyclopts import App, Argument

from shoal.cli.main import COMMANDS
from shoal.cli.runtime import make_app
from tools.reference.docstrings import cell, markdown, read_docstring

_HEAD = """# Commands

Every command and option, written by `make docs` from the output of `shoal COMMAND --help`.
`python -m shoal` is the same as `shoal`.

- `--json` prints one JSON object instead of sentences, also for errors.
- Without a terminal, no command asks a question. Each command ends with the likely next one.
- Exit codes:
  0 success; 1 a file or a store; 2 the command line; 3 the study or the data;
  4 rejected by the ledger; 5 no consent; 6 the network;
  7 a violation of the protocol, or an audit that found more than was claimed;
  130 interrupted; 143 terminated.
  [All errors](errors.md).
- The ledger is the file `--ledger PATH`, or `SHOAL_LEDGER`, or one in the user's data directory.

"""


def command_apps() -> dict[str, App]:
    """Return the command of each command line without options, subcommands included."""
    found: dict[str, App] = {}
    every = make_app("shoal")
    for name, (target, _) in COMMANDS.items():
        every.command(target, name=name)
        app = every[name]
        below = [part for part in app if not part.startswith("-")]
        if app.default_command is not None:
            found[f"shoal {name}"] = app
        found |= {f"shoal {name} {part}": app[part] for part in below}
    return found


def commands_page() -> str:
    """Return the page as text."""
    lines = [_HEAD + "| command | |\n|---|---|"]
    lines += [
        f"| [`shoal {name}`](#shoal-{name}) | {summary} |"
        for name, (_, summary) in COMMANDS.items()
    ]
    apps = command_apps()
    for name, (_, summary) in COMMANDS.items():
        if f"shoal {name}" not in apps:
            lines += ["", f"## shoal {name}", "", summary]
        for line, app in apps.items():
            if line.split()[1] == name:
                lines += ["", *_command(line, app)]
    return "\n".join(lines) + "\n"


def _command(line: str, app: App) -> Iterator[str]:
    text = read_docstring(inspect.unwrap(app.default_command) if app.default_command else app)
    arguments = list(app.assemble_argument_collection(parse_docstring=True))
    yield f"{'#' * len(line.split())} {line}"
    yield ""
    yield f"```text\n{_usage(line, arguments)}\n```"
    yield ""
    yield markdown(text.summary)
    if text.body:
        yield "\n" + markdown(text.body)
    yield "\n| option | | default |\n|---|---|---|"
    for argument in arguments:
        yield (
            f"| {_names(argument)} | {cell(argument.parameter.help or '')} | {_default(argument)} |"
        )


def _usage(line: str, arguments: list[Argument]) -> str:
    parts = [line]
    for argument in arguments:
        word = _word(argument)
        parts.append(word if argument.required else f"[{word}]")
    lines = [""]
    for part in parts:
        if len(lines[-1]) + len(part) > 110:
            lines.append("     ")
        lines[-1] += f" {part}" if lines[-1] else part
    return "\n".join(lines)


def _word(argument: Argument) -> str:
    if _is_positional(argument):
        is_repeated = argument.field_info.kind is inspect.Parameter.VAR_POSITIONAL
        return f"{argument.name}{'...' if is_repeated else ''}"
    choices = argument.get_choices()
    value = (
        ""
        if argument.hint is bool
        else " " + ("|".join(choices) if choices and len(choices) < 5 else _kind(argument.hint))
    )
    return f"{argument.name}{value}"


def _kind(hint: Any) -> str:
    """Return the type of an option's value, in a word."""
    text = str(hint)
    for part, word in (("Path", "FILE"), ("int", "N"), ("float", "X")):
        if part in text:
            return word
    return "TEXT"


def _names(argument: Argument) -> str:
    names = [name for name in argument.names if name not in argument.negatives]
    return ", ".join(f"`{name}`" for name in names) + (" (required)" if argument.required else "")


def _default(argument: Argument) -> str:
    default = argument.field_info.default
    return (
        ""
        if default in (inspect.Parameter.empty, None, False, ())
        else f"`{default}`".replace("|", "\\|")
    )


def _is_positional(argument: Argument) -> bool:
    return not argument.name.startswith("-")
