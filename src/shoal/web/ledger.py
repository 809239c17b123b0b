"""A participant's own ledger as one page: it stands by itself, loads nothing, sends nothing, and runs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from shoal.web.assets import style_hash, text_of
from shoal.web.rendering import render


def ledger_page(ledger: Mapping[str, Any]) -> str:
    """The page.

    Parameters
    ----------
    ledger
        ``path``, ``head``, ``records`` and ``made``; ``limits``, each with ``about`` and ``caps`` (``words``, and ``spent`` and ``used``
        of 100 for a bar); ``note``, ``totals`` and ``pending`` as lines; ``studies``, each with what was sent to whom.
    """
    # As a browser hashes it: the text between the tags.
    style = text_of("style.css")
    policy = f"default-src 'none'; style-src {style_hash(style)}; base-uri 'none'; form-action 'none'"
    return render("ledger.html", ledger=ledger, style=Markup(style), policy=policy)
