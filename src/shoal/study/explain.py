"""A validator's complaints in sentences: which key, which value, what is wrong, what to write instead."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from typing import Any

from pydantic import BaseModel, ValidationError

from shoal.names import shown
from shoal.study.problems import Path, Problem
from shoal.study.spec import FeatureSpec, Study

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
# The first that fits counts: true is an int to Python, and a date and time is a date.
_NOT = {
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
    "out_of_time": "a time of the years 1 to 9999 in UTC",
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
"""What may be typed, by key."""
_TABLES: dict[str, type[BaseModel]] = {
    name: model
    for name, field in Study.model_fields.items()
    for model in [field.annotation, *getattr(field.annotation, "__args__", ())]
    if isinstance(model, type) and issubclass(model, BaseModel)
}


def explain(error: ValidationError) -> list[Problem]:
    """Every complaint as a problem, at most `MAX_PROBLEMS`."""
    found: list[Problem] = []
    for detail in error.errors(include_url=False)[:MAX_PROBLEMS]:
        if detail["type"] == "study_rules":
            found += detail["ctx"]["problems"]
        else:
            # Pydantic marks a key of a free table, such as a group's name, by a step of its own.
            path = tuple(step for step in detail["loc"] if step != "[key]")
            found += _explain_one(detail["type"], path, detail["input"], detail.get("ctx", {}))
    return found[:MAX_PROBLEMS]


def show_value(value: object) -> str:
    """A value as it may have stood in the file, cut short."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 64:
        return "(a number of more than 64 bits)"
    if isinstance(value, (list, tuple)):
        return f"(a list of {len(value)})"
    if isinstance(value, Mapping):
        return "(a table)"
    text = json.dumps(value, ensure_ascii=not value.isprintable()) if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else text[:36] + " ..."


def _explain_one(kind: str, path: Path, value: Any, context: Mapping[str, Any]) -> Iterator[Problem]:
    key = _name(path)
    if kind == "extra_forbidden":
        yield _unknown(path)
    elif kind == "missing" and isinstance(path[-1], str):
        yield Problem("SPEC-011", path[:-1], f"{_table(path[:-1])} lacks {key}.", _meaning(path))
    elif kind == "missing":
        yield Problem("SPEC-013", path[:-1], f"{_name(path[:-1])} must be a list of two.", _meaning(path[:-1]))
    elif kind in _KINDS:
        yield Problem("SPEC-012", path, f"{key} = {show_value(value)} must be {_KINDS[kind]}{_but_is(value)}.", _rewrite(kind, path, value))
    elif kind == "literal_error":
        yield Problem(
            "SPEC-013", path, f"{key} = {show_value(value)} must be {context['expected']}.", _nearest(key, value, context["expected"])
        )
    else:
        must = _LIMITS[kind].format(**context) if kind in _LIMITS else "something else"
        yield Problem("SPEC-013", path, f"{key} = {show_value(value)} must be {must}.", _meaning(path))


def _unknown(path: Path) -> Problem:
    key, table = str(path[-1]), path[:-1]
    here = list(_model(table).model_fields)
    close = difflib.get_close_matches(key[:60], here, n=1)
    home = [name for name, model in _TABLES.items() if key in model.model_fields]
    if close:
        fix = f"Did you mean {close[0]}?"
    elif home:
        fix = f"{key} belongs under [{home[0]}]."
    else:
        fix = f"Remove it. {_table(table)} may have: {', '.join(here)}."
    return Problem("SPEC-010", path, f"{_table(table)} has no key {show_value(key)}.", fix)


def _model(table: Path) -> type[BaseModel]:
    if not table:
        return Study
    return FeatureSpec if table[0] == "feature" else _TABLES[str(table[0])]


def _table(path: Path) -> str:
    if not path:
        return "The study"
    return f"[[feature]] number {int(path[1]) + 1}" if path[0] == "feature" and len(path) > 1 else f"[{path[0]}]"


def _name(path: Path) -> str:
    """The last key of a path, with the positions that follow it: ``range[1]``."""
    names = [i for i, step in enumerate(path) if isinstance(step, str)]
    last = names[-1] if names else 0
    key = str(path[last])[:60]
    return shown(key) + "".join(f"[{step}]" for step in path[last + 1 :])


def _meaning(path: Path) -> str | None:
    """What the reference says about a key, and something that may be typed."""
    keys = [step for step in path if isinstance(step, str)]
    key, table = (keys[0], ()) if len(keys) == 1 else (keys[1], path)
    field = _model(table).model_fields.get(key)
    example = f" For example: {key} = {_EXAMPLES[key]}" if key in _EXAMPLES else ""
    return f"{key}: {field.description}{example}" if field is not None and field.description else None


def _but_is(value: object) -> str:
    return next((f", not {name}" for type_, name in _NOT.items() if isinstance(value, type_)), "")


def _rewrite(kind: str, path: Path, value: object) -> str | None:
    """The line as it was probably meant."""
    key = _name(path)
    try:
        if kind == "float_type" and isinstance(value, str):
            return f"{key} = {float(value)}"
        if kind == "int_type" and isinstance(value, (str, float)) and float(value).is_integer():
            return f"{key} = {int(float(value))}"
    except (ValueError, OverflowError):
        return _meaning(path)
    if kind == "string_type" and isinstance(value, (bool, int, float)):
        return f'{key} = "{show_value(value)}"' if isinstance(path[-1], str) else f'"{show_value(value)}", in quotes'
    if kind in ("model_type", "dict_type") and len(path) == 1:
        return f"[{key}] on a line of its own, and its keys below"
    if kind == "bool_type" and isinstance(value, str) and value.lower() in ("true", "false"):
        return f"{key} = {value.lower()}"
    return _meaning(path)


def _nearest(key: str, value: object, expected: str) -> str:
    choices = [choice.strip("' ") for choice in expected.replace(" or ", ",").split(",")]
    close = difflib.get_close_matches(str(value)[:60], choices, n=1) if isinstance(value, str) else []
    return f'{key} = "{close[0]}"' if close else " or ".join(f'{key} = "{choice}"' for choice in choices)
