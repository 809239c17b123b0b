"""What one value of a study may be: numbers that are finite, texts that are plain and short, lists that are not endless."""

from __future__ import annotations

import unicodedata
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

MAX_TEXT = 200
MAX_PARAGRAPH = 4_000
MAX_COUNT = 10**12

# Controls can rewrite a terminal's lines, and overrides of the writing direction what a reader sees.
_CONTROLS = ("Cc", "Cs", "Co", "Zl", "Zp")
_DIRECTIONS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class Table(BaseModel):
    """A table of the study file: frozen, strict, and without room for unknown keys."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def _is_plain(text: str) -> bool:
    return not any(unicodedata.category(character) in _CONTROLS or character in _DIRECTIONS for character in text)


def is_line(text: str) -> bool:
    """Whether a text can stand in a study where a `Line` is due."""
    return len(text) <= MAX_TEXT and _is_plain(text) and bool(text.strip())


def _plain_line(text: str) -> str:
    if not _is_plain(text) or not text.strip():
        raise PydanticCustomError("plain_text", "must be a line of text without control characters")
    return text


def _plain_paragraph(text: str) -> str:
    if not _is_plain(text.replace("\n", " ").replace("\t", " ")) or not text.strip():
        raise PydanticCustomError("plain_text", "must be text without control characters")
    return text


def _list_as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Line = Annotated[str, Field(min_length=1, max_length=MAX_TEXT), AfterValidator(_plain_line)]
Paragraph = Annotated[str, Field(min_length=1, max_length=MAX_PARAGRAPH), AfterValidator(_plain_paragraph)]
# Adding zero turns -0.0 into 0.0, which reads the same and must have the same digest.
PlusZero = AfterValidator(lambda number: number + 0.0)
Number = Annotated[float, PlusZero]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Items = BeforeValidator(_list_as_tuple)
"""Marks a tuple that is written as a list; strict models would refuse the list."""
