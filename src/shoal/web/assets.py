"""Files that pages refer to. Their names carry a hash of what is in them, so that a browser may keep them for ever."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

ROOT = "/static"

_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_HASH_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is served."""

    content: bytes
    media_type: str


@cache
def text_of(name: str) -> str:
    """What is in a file."""
    return (files("shoal.web") / "static" / name).read_text(encoding="utf-8")


@cache
def address_of(name: str) -> str:
    """The path under which a file is served.

    Examples
    --------
    >>> address_of("style.css").startswith("/static/style.") and address_of("style.css").endswith(".css")
    True
    """
    stem, _, kind = name.rpartition(".")
    return f"{ROOT}/{stem}.{hashlib.sha256(text_of(name).encode()).hexdigest()[:_HASH_DIGITS]}.{kind}"


@cache
def served() -> dict[str, Asset]:
    """All files by the paths under which they are served."""
    names = sorted(entry.name for entry in (files("shoal.web") / "static").iterdir())
    return {address_of(name): Asset(text_of(name).encode(), _TYPES[name.rpartition(".")[2]]) for name in names}


def style_hash(text: str) -> str:
    """What a content security policy calls a style that stands in the page itself."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
