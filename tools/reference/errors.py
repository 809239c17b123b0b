"""The page of error codes: meaning, messages, what to do and modules of each code."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal import errors
from shoal.errors import CODES, ShoalError
from shoal.transport.requests import STATUS
from tools.reference.sentences import Saying, sayings
from tools.reference.sources import Sources

ADVICE = Path(__file__).parent / "advice.toml"
MAX_MODULES = 6

_HEAD = """# Error codes

Every error has a code with a fixed meaning.
It states the problem (with the value, unless that is private), the reason, and the fix.
Programs get the same three sentences with `--json`,
and over HTTP in `application/problem+json` ([format](http.md#errors)).
Below, words in «» are placeholders of values.

| exit code | errors |
|---|---|
"""

_TAIL = "\n*Written by `make docs` from the table in `shoal/errors.py` and from the source.*\n"

_ANSWERED = re.compile("MSG-00[2-6]|SPEC-.*|MANIFEST-.*|HOST-003|HOST-006")
"""Codes that a coordinator answers with 400: see docs/reference/http.md."""


def error_page(sources: Sources) -> str:
    """Return the text of docs/reference/errors.md: one section for each code."""
    said: dict[str, list[Saying]] = defaultdict(list)
    for saying in sayings(sources):
        said[saying.code].append(saying)
    advice = _advice()
    strange = advice.keys() - CODES.keys()
    if strange:
        raise SystemExit(
            f"{ADVICE.name} advises on codes that are not in the table: "
            f"{', '.join(sorted(strange))}."
        )
    helpless = [
        code
        for code in CODES
        if code not in advice and not any(saying.fix for saying in said[code])
    ]
    if helpless:
        raise SystemExit(
            f"Nothing says what to do about {', '.join(helpless)}: give a fix where they are "
            f"raised, or advice in {ADVICE.name}."
        )
    exits: dict[int, list[type[ShoalError]]] = defaultdict(list)
    for kind in _tree(ShoalError):
        exits[kind.exit_code].append(kind)
    lines = [_HEAD.rstrip("\n")]
    for code in sorted(exits):
        kinds = "; ".join(f"`{kind.__name__}`: {_first_line(kind)}" for kind in exits[code])
        lines.append(f"| {code} | {kinds} |")
    families: dict[str, list[str]] = defaultdict(list)
    for name in CODES:
        families[name.split("-")[0]].append(name)
    for family in sorted(families):
        lines += ["", f"## {family}"]
        for name in families[family]:
            lines += ["", *_section(name, said[name], advice.get(name), sources)]
    return "\n".join(lines) + "\n" + _TAIL


def _advice() -> dict[str, str]:
    return {
        code: str(text).strip() for code, text in tomllib.loads(ADVICE.read_text("utf-8")).items()
    }


def _section(
    code: str, said: Sequence[Saying], advice: str | None, sources: Sources
) -> Iterator[str]:
    """Yield the lines about one code; the heading is its anchor."""
    yield f"### {code}"
    yield ""
    yield escape_markdown(CODES[code])
    yield ""
    exits, statuses = _exits(said, sources), _statuses(code, said)
    if exits:
        yield f"- Exit code of a command: {_listed(exits)}"
    if statuses:
        yield f"- HTTP status: {_listed(statuses)}"
    yield f"- Raised in {', '.join(f'`{module}`' for module in _modules(said))}"
    yield ""
    yield "Messages:"
    yield ""
    yield from _sentences(said)
    yield from ("What to do:", "", *_to_do(said, advice))


def _modules(said: Sequence[Saying]) -> list[str]:
    """Return the modules that raise a code, or their packages if there are many."""
    names = {saying.module for saying in said}
    return sorted(
        names if len(names) <= MAX_MODULES else {".".join(name.split(".")[:2]) for name in names}
    )


def _sentences(said: Sequence[Saying]) -> Iterator[str]:
    """Yield each sentence once, as a reader sees it, with why and fix below it."""
    by_what: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for saying in said:
        for what in saying.what:
            whys, fixes = by_what.setdefault(what, ({}, {}))
            whys.update(dict.fromkeys(saying.why))
            fixes.update(dict.fromkeys(saying.fix))
    alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for what, (whys, fixes) in by_what.items():
        alike.setdefault((tuple(whys), tuple(fixes)), []).append(what)
    for (why_forms, fix_forms), whats in alike.items():
        if why_forms or fix_forms:
            yield "- " + "<br>".join(f"**{escape_markdown(what)}**" for what in whats)
        else:
            yield from (f"- **{escape_markdown(what)}**" for what in whats)
        yield from (f"    - why: {escape_markdown(why)}" for why in why_forms)
        yield from (f"    - fix: {escape_markdown(fix)}" for fix in fix_forms)
    yield ""


def _to_do(said: Sequence[Saying], advice: str | None) -> Iterator[str]:
    fixes = dict.fromkeys(fix for saying in said for fix in saying.fix)
    if advice is not None:
        yield advice
    elif len(fixes) == 1:
        yield escape_markdown(next(iter(fixes)))
    else:
        yield "The sentence that you met has its fix above."
    beyond = [fix for saying in said if not saying.what for fix in saying.fix]
    if beyond:
        yield ""
        yield from (f"- {escape_markdown(fix)}" for fix in dict.fromkeys(beyond))


def _exits(said: Sequence[Saying], sources: Sources) -> list[int]:
    """Return the exit codes of a code: those of the classes that carry it.

    The classes are ours or their descendants.
    """
    found = set()
    for saying in said:
        module = sources.modules[saying.module]
        kinds = sources.kinds(module, saying.made_by) or _behind(
            module.name, saying.made_by, sources
        )
        ours = [getattr(errors, kind) for kind in kinds if hasattr(errors, kind)]
        if ours:
            found.add(ours[0].exit_code)
        elif saying.module.startswith(
            "shoal.study"
        ):  # problems of a study file, which are raised together
            found.add(errors.SpecError.exit_code)
    return sorted(found)


def _behind(module: str, maker: str, sources: Sources) -> list[str]:
    """Return the class that a function raises with the given code."""
    home = sources.home(sources.modules[module], maker)
    calls = (
        [node for node in ast.walk(home[0].defined[home[1]]) if isinstance(node, ast.Call)]
        if home
        else []
    )
    names = [call.func.id for call in calls if isinstance(call.func, ast.Name)]
    return next(
        (
            kinds
            for name in names
            if home and "ShoalError" in (kinds := sources.kinds(home[0], name))
        ),
        [],
    )


def _statuses(code: str, said: Sequence[Saying]) -> list[int]:
    found = {saying.status for saying in said if saying.status is not None}
    if code in STATUS:
        found.add(STATUS[code])
    elif _ANSWERED.fullmatch(code):
        found.add(400)
    elif code.startswith("STORE-"):
        found.add(503)
    return sorted(found)


def _tree(kind: type[ShoalError]) -> list[type[ShoalError]]:
    return [
        kind,
        *(
            below
            for child in kind.__subclasses__()
            if child.__module__ == errors.__name__
            for below in _tree(child)
        ),
    ]


def _first_line(kind: type[ShoalError]) -> str:
    return (kind.__doc__ or "").split("\n")[0].rstrip(".")


def _listed(numbers: Sequence[int]) -> str:
    return " or ".join(str(number) for number in numbers)


def escape_markdown(text: str) -> str:
    r"""Return plain text as Markdown that shows it unchanged.

    Examples
    --------
    >>> print(escape_markdown("n_updates < 3 | [ddml]"))
    n\_updates &lt; 3 \| \[ddml\]
    """
    text = re.sub(r"([\\`*_\[\]|#{}])", r"\\\1", " ".join(text.split()))
    return text.replace("<", "&lt;").replace(">", "&gt;")
