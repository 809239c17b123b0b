"""Turn validation errors into sentences: key, value, problem and fix.

The loader and the manifest call `explain`. A sentence never contains more than a few characters of
a value, so that it fits a line.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from typing import Any

from pydantic import BaseModel, ValidationError

from shoal.study.constraints import KeyPath, StudyProblem
from shoal.study.spec import FeatureSpec, Study
from shoal.text import escape_text

MAX_PROBLEMS = 50

_KINDS = {
    "float_type": "a number",
    "int_type": "a whole number, written without a point",
    "bool_type": "true or false",
    "string_type": "text in quotes",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "datetime_type": "a date and time",
}
# The first match counts: in Python true is an int, and a date and time is a date.
_TYPE_NAMES = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a table",
    datetime: "a date and time",
    date: "a date",
    time: "a time",
}
_LIMITS = {
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "finite_number": "a finite number",
    "string_too_short": "at least {min_length} character long",
    "string_too_long": "at most {max_length} characters long",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
    "timezone_aware": "a time with its zone, such as 2031-01-31T12:00:00Z",
    "out_of_time": "a time in the years 1 to 9999 in UTC",
    "plain_text": "plain text, without control characters",
}
_EXAMPLES = {
    "epsilon": "1.0",
    "delta": "1e-6",
    "epsilon_release": "0.1",
    "n_queries": "10",
    "n_updates": "1",
    "minimum": "500",
    "size": "1000",
    "honest_share": "0.9",
    "max_rows_per_person": "1",
    "range": "[0, 120]",
    "bins": "[20, 40, 60]",
}
"""Key -> a valid value."""
_TABLES: dict[str, type[BaseModel]] = {
    name: model
    for name, field in Study.model_fields.items()
    for model in [field.annotation, *getattr(field.annotation, "__args__", ())]
    if isinstance(model, type) and issubclass(model, BaseModel)
}


def explain(error: ValidationError) -> list[StudyProblem]:
    """Return the problems of a validation error, at most `MAX_PROBLEMS`."""
    problems: list[StudyProblem] = []
    for detail in error.errors(include_url=False)[:MAX_PROBLEMS]:
        if detail["type"] == "study_rules":
            problems += detail["ctx"]["problems"]
        else:
            # Pydantic adds a step "[key]" for a key of a free table, such as a group's name.
            path = tuple(step for step in detail["loc"] if step != "[key]")
            problems += _explain_one(detail["type"], path, detail["input"], detail.get("ctx", {}))
    return problems[:MAX_PROBLEMS]


def format_value(value: object) -> str:
    """Return a value as in the file, shortened."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 64:
        return "(a number of more than 64 bits)"
    if isinstance(value, (list, tuple)):
        return f"(a list of {len(value)})"
    if isinstance(value, Mapping):
        return "(a table)"
    text = (
        json.dumps(value, ensure_ascii=not value.isprintable())
        if isinstance(value, str)
        else str(value)
    )
    return text if len(text) <= 40 else text[:36] + " ..."


def _explain_one(
    kind: str, path: KeyPath, value: Any, context: Mapping[str, Any]
) -> Iterator[StudyProblem]:
    key = _format_key(path)
    if kind == "extra_forbidden":
        yield _explain_unknown_key(path)
    elif kind == "missing" and isinstance(path[-1], str):
        yield StudyProblem(
            "SPEC-011",
            path[:-1],
            f"{_describe_table(path[:-1])} lacks {key}.",
            _describe_key(path),
        )
    elif kind == "missing":
        yield StudyProblem(
            "SPEC-013",
            path[:-1],
            f"{_format_key(path[:-1])} must be a list of two.",
            _describe_key(path[:-1]),
        )
    elif kind in _KINDS:
        yield StudyProblem(
            "SPEC-012",
            path,
            f"{key} = {format_value(value)} must be {_KINDS[kind]}{_describe_type(value)}.",
            _suggest_line(kind, path, value),
        )
    elif kind == "literal_error":
        yield StudyProblem(
            "SPEC-013",
            path,
            f"{key} = {format_value(value)} must be {context['expected']}.",
            _suggest_choice(key, value, context["expected"]),
        )
    else:
        must = _LIMITS[kind].format(**context) if kind in _LIMITS else "something else"
        yield StudyProblem(
            "SPEC-013", path, f"{key} = {format_value(value)} must be {must}.", _describe_key(path)
        )


def _explain_unknown_key(path: KeyPath) -> StudyProblem:
    key, table = str(path[-1]), path[:-1]
    here = list(_find_model(table).model_fields)
    close = difflib.get_close_matches(key[:60], here, n=1)
    home = [name for name, model in _TABLES.items() if key in model.model_fields]
    if close:
        fix = f"Did you mean {close[0]}?"
    elif home:
        fix = f"{key} belongs under [{home[0]}]."
    else:
        fix = f"Remove it. {_describe_table(table)} may have: {', '.join(here)}."
    return StudyProblem(
        "SPEC-010", path, f"{_describe_table(table)} has no key {format_value(key)}.", fix
    )


def _find_model(table: KeyPath) -> type[BaseModel]:
    if not table:
        return Study
    return FeatureSpec if table[0] == "feature" else _TABLES[str(table[0])]


def _describe_table(path: KeyPath) -> str:
    if not path:
        return "The study"
    return (
        f"[[feature]] number {int(path[1]) + 1}"
        if path[0] == "feature" and len(path) > 1
        else f"[{path[0]}]"
    )


def _format_key(path: KeyPath) -> str:
    """Return the last key of a path, with the positions after it: ``range[1]``."""
    names = [i for i, step in enumerate(path) if isinstance(step, str)]
    last = names[-1] if names else 0
    key = str(path[last])[:60]
    return escape_text(key) + "".join(f"[{step}]" for step in path[last + 1 :])


def _describe_key(path: KeyPath) -> str | None:
    """Return the description of a key, with an example."""
    keys = [step for step in path if isinstance(step, str)]
    key, table = (keys[0], ()) if len(keys) == 1 else (keys[1], path)
    field = _find_model(table).model_fields.get(key)
    example = f" For example: {key} = {_EXAMPLES[key]}" if key in _EXAMPLES else ""
    return (
        f"{key}: {field.description}{example}" if field is not None and field.description else None
    )


def _describe_type(value: object) -> str:
    return next(
        (f", not {name}" for type_, name in _TYPE_NAMES.items() if isinstance(value, type_)), ""
    )


def _suggest_line(kind: str, path: KeyPath, value: object) -> str | None:
    """Return the line that was probably intended."""
    key = _format_key(path)
    try:
        if kind == "float_type" and isinstance(value, str):
            return f"{key} = {float(value)}"
        if kind == "int_type" and isinstance(value, (str, float)) and float(value).is_integer():
            return f"{key} = {int(float(value))}"
    except (ValueError, OverflowError):
        return _describe_key(path)
    if kind == "string_type" and isinstance(value, (bool, int, float)):
        return (
            f'{key} = "{format_value(value)}"'
            if isinstance(path[-1], str)
            else f'"{format_value(value)}", in quotes'
        )
    if kind in ("model_type", "dict_type") and len(path) == 1:
        return f"Write [{key}] on a separate line, and its keys below."
    if kind == "bool_type" and isinstance(value, str) and value.lower() in ("true", "false"):
        return f"{key} = {value.lower()}"
    return _describe_key(path)


def _suggest_choice(key: str, value: object, expected: str) -> str:
    choices = [choice.strip("' ") for choice in expected.replace(" or ", ",").split(",")]
    close = (
        difflib.get_close_matches(str(value)[:60], choices, n=1) if isinstance(value, str) else []
    )
    return (
        f'{key} = "{close[0]}"'
        if close
        else " or ".join(f'{key} = "{choice}"' for choice in choices)
    )
