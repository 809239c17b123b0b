"""Templates to pages. Whatever is not part of a template is escaped, wherever it comes from."""

from __future__ import annotations

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from shoal import __version__
from shoal.web.assets import address_of

PROTOCOLS = {"anonml": "AnonML", "ddml": "DDML", "sdq": "SDQ", "pfds": "PFDS"}
"""How the protocols are spelled."""


def with_commas(n: int) -> str:
    """A whole number for people.

    Examples
    --------
    >>> with_commas(20000)
    '20,000'
    """
    return f"{n:,}"


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("shoal.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(asset=address_of, version=__version__, protocols=PROTOCOLS)
    made.filters["commas"] = with_commas
    return made


def render(template: str, **data: Any) -> str:
    """A page from a template and plain data."""
    return _environment().get_template(template).render(**data)
