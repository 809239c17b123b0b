"""A browser page that records its errors, with accessibility checks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_SCRIPTS = Path(__file__).parent / "scripts"


def _read_script(name: str) -> str:
    return (_SCRIPTS / f"{name}.js").read_text("utf-8")


@dataclass
class Visitor:
    """A page in a browser, with its errors and its requests."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on(
            "console",
            lambda message: (
                self.errors.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def goto(self, url: str) -> Any:
        return self.page.goto(url)

    def check(self, origin: str, *, refused: int = 0) -> None:
        """Check that there was no error apart from expected refusals, and no other origin."""
        meant = [
            error
            for error in self.errors
            if error.startswith("Failed to load resource: the server responded with a status of 4")
        ]
        assert [error for error in self.errors if error not in meant] == []
        assert len(meant) == refused, meant
        assert {
            urlsplit(url)._replace(path="", query="", fragment="").geturl() for url in self.requests
        } <= {origin}

    def find_accessibility_faults(self) -> list[str]:
        """Return the elements that a person could not perceive or use."""
        found: list[str] = self.page.evaluate(_read_script("accessibility_faults"))
        return found

    def is_too_wide(self) -> bool:
        found: bool = self.page.evaluate(
            "() => document.documentElement.scrollWidth > window.innerWidth"
        )
        return found

    def tab_through(self) -> tuple[list[str], list[str], bool]:
        """Return the controls, those that Tab reaches in order, and whether focus is visible."""
        there: list[str] = self.page.evaluate(_read_script("reachable"))
        focused = _read_script("focused")
        reached, are_seen = [], True
        for _ in range(len(there)):
            self.page.keyboard.press("Tab")
            place, is_seen = self.page.evaluate(focused)
            reached.append(place)
            are_seen = are_seen and is_seen
        return there, reached, are_seen
