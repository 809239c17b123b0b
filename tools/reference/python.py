"""The page of public Python names, generated from their docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import shoal
from tools.reference.docstrings import cell, example, markdown, read_docstring

_HEAD = """# Estimators and schemas

The public names of `from shoal import ...`, written by `make docs` from the docstrings.
Their examples run in the tests.
How to use them, also in pipelines: [estimators in scikit-learn](../guide/estimators.md).
They need the extra `learn`.

The estimators **simulate** a whole population on one machine.
No person is asked, and a seeded run protects no person.
The stated guarantee is that of the same study with real people.

!!! warning "A search over settings multiplies what is spent"

    Every `fit` spends `epsilon` once for each person or record in its rows.
    Ten-fold cross-validation is ten fits, of which nine see any one row: 9 × epsilon.
    A grid of 12 settings with five folds and a last fit is 12 × 5 + 1 = 61 fits.
    12 × 4 + 1 = 49 of them see any one row: at epsilon 1 the total is 49, which protects no one.
    On public or synthetic rows it costs nothing.
    Choose settings there, or use those that follow from public parameters
    (the default of every estimator), and fit once on real people.
    A choice by the score on private rows is itself a release.
"""

GROUPS = {
    "Estimators": [
        "AnonMLClassifier",
        "DDMLClassifier",
        "DDMLRegressor",
        "SDQTreeClassifier",
        "SDQNaiveBayesClassifier",
        "PFDSClassifier",
        "PFDSRegressor",
    ],
    "Schemas": ["Schema", "Numeric", "Categorical", "Text"],
    "Warnings and errors": ["SchemaInferredWarning", "HoldersDealtWarning", "ShoalError"],
}


def python_page() -> str:
    """Return the page as text."""
    missing = (
        set(shoal.__all__) - {"__version__"} - {name for names in GROUPS.values() for name in names}
    )
    if missing:
        raise SystemExit(
            f"Public names without a place in the reference: {', '.join(sorted(missing))}. Add "
            "them to tools/reference/python.py."
        )
    lines = [_HEAD]
    for title, names in GROUPS.items():
        lines += [f"## {title}", ""]
        for name in names:
            lines += [*_class(name, getattr(shoal, name)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _class(name: str, thing: type) -> Iterator[str]:
    text = read_docstring(thing)
    yield f"### {name}"
    yield ""
    if not issubclass(thing, Warning):
        yield f"```text\n{_signature(name, thing)}\n```"  # a form, not an example
        yield ""
    yield markdown(text.summary)
    if text.body:
        yield "\n" + markdown(text.body)
    for section in ("Parameters", "Attributes"):
        items = text.items(section)
        if items:
            yield f"\n| {section.lower()} | |\n|---|---|"
            yield from (
                f"| {', '.join(f'`{part}`' for part in names.split(', '))} | {cell(what)} |"
                for names, what in items.items()
            )
    for section in ("Notes", "Privacy"):
        if section in text.sections:
            title = "" if section == "Notes" else "**Privacy.** "
            yield f"\n{title}{markdown(text.sections[section])}"
    if "Examples" in text.sections:
        yield "\n" + example(text.sections["Examples"])
    yield from _methods(thing)


def _methods(thing: type) -> Iterator[str]:
    """Yield public methods of shoal with one line each."""
    found = [
        (name, member)
        for name, member in inspect.getmembers(thing, callable)
        if not name.startswith("_")
        and getattr(member, "__module__", "").startswith("shoal")
        and not isinstance(member, type)
    ]
    if found and not issubclass(thing, Exception):
        yield "\n| method | |\n|---|---|"
        yield from (
            f"| `{name}{_arguments(member)}` | {cell(read_docstring(member).summary)} |"
            for name, member in found
        )


def _arguments(member: Callable[..., object]) -> str:
    names = [
        parameter
        for parameter in inspect.signature(member).parameters.values()
        if parameter.name not in ("self", "cls")
    ]
    return f"({', '.join(str(part.replace(annotation=part.empty)) for part in names)})".replace(
        "|", "\\|"
    )


def _signature(name: str, thing: type) -> str:
    """Return the call with its defaults, on one line or with one parameter a line."""
    parts: list[str] = []
    parameters = list(inspect.signature(thing).parameters.values())
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(str(parameter.replace(annotation=parameter.empty)))
    line = f"{name}({', '.join(parts)})"
    return line if len(line) <= 120 else f"{name}(\n    " + ",\n    ".join(parts) + ",\n)"
