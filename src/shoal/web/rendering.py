"""Jinja2 environment, static assets, the ledger page.

`shoal.web.study_pages` and `shoal ledger page` render with it. All data that is not part of a
template is escaped. The names of static files contain a hash of their content, so that a browser
may cache them for ever.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from shoal import __version__
from shoal.study.registry import PROTOCOLS

STATIC_ROOT = "/static"

_TYPES = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HASH_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file as it is served."""

    content: bytes
    media_type: str


@cache
def read_asset(name: str) -> str:
    """Return the content of a static file."""
    return (files("shoal.web") / "static" / name).read_text(encoding="utf-8")


@cache
def make_asset_path(name: str) -> str:
    """Return the path of a static file, with a hash of its content.

    Examples
    --------
    >>> path = make_asset_path("style.css")
    >>> path.startswith("/static/style."), path.endswith(".css")
    (True, True)
    """
    stem, _, kind = name.rpartition(".")
    digest = hashlib.sha256(read_asset(name).encode()).hexdigest()[:_HASH_DIGITS]
    return f"{STATIC_ROOT}/{stem}.{digest}.{kind}"


@cache
def list_assets() -> dict[str, Asset]:
    """Return all static files by path."""
    names = sorted(entry.name for entry in (files("shoal.web") / "static").iterdir())
    return {
        make_asset_path(name): Asset(read_asset(name).encode(), _TYPES[name.rpartition(".")[2]])
        for name in names
    }


def hash_style(text: str) -> str:
    """Return the source expression of an inline style for a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


PROTOCOL_TITLES = {name: protocol.title for name, protocol in PROTOCOLS.items()}


def format_commas(n: int) -> str:
    """Return a whole number with thousands separators.

    Examples
    --------
    >>> format_commas(20000)
    '20,000'
    """
    return f"{n:,}"


@cache
def _make_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("shoal.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        asset=make_asset_path, version=__version__, protocols=PROTOCOL_TITLES
    )
    environment.filters["commas"] = format_commas
    return environment


def render(template: str, **data: Any) -> str:
    """Render a template with plain data."""
    return _make_environment().get_template(template).render(**data)


def render_ledger(ledger: Mapping[str, Any]) -> str:
    """Render a participant's ledger as one page without scripts or external files.

    Parameters
    ----------
    ledger
        ``path``, ``head``, ``records`` and ``made``; ``limits``, each with ``about`` and ``caps``
        (``words``, and ``spent`` and ``used`` of 100 for a bar); ``note``, ``totals`` and
        ``pending`` as lines; ``studies``, each with its releases and recipient.
    """
    # A browser hashes the text between the tags.
    style = read_asset("style.css")
    policy = (
        f"default-src 'none'; style-src {hash_style(style)}; base-uri 'none'; form-action 'none'"
    )
    return render("ledger.html", ledger=ledger, style=Markup(style), policy=policy)
