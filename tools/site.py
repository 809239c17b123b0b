"""Build the documentation site and check it.

``python -m tools.site [--to DIRECTORY]``; ``make docs`` runs it. The site is built in a temporary
directory, by zensical in strict mode, and moved into place only if all checks pass: every link and
anchor has a target, every page is linked from another, nothing is loaded from elsewhere, and every
page forbids it to browsers.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

ROOT = Path(__file__).parent.parent
PARTS = ("docs", "zensical.toml", "tools/site_theme")
POLICY = "default-src 'none'"

_LOADING = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
}
_RELATIONS = {
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "modulepreload",
    "manifest",
}


class SiteError(Exception):
    """The site cannot be built, or a check failed."""


@dataclass
class Page(HTMLParser):
    """One page: its anchors, its links, and the resources that a browser would load."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    policy: str = ""

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the attributes of a tag."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and _RELATIONS & set(given.get("rel", "").split()):
            self.loads.append(given.get("href", ""))
        if given.get(_LOADING.get(tag, ""), "") and not given[_LOADING[tag]].startswith("data:"):
            self.loads.append(given[_LOADING[tag]])
        if tag == "meta" and given.get("http-equiv", "").lower() == "content-security-policy":
            self.policy = given.get("content", "")


def build(to: Path, root: Path = ROOT) -> None:
    """Build the site of a checkout into a new directory.

    Raise `SiteError` if zensical reports an error.
    """
    with tempfile.TemporaryDirectory(prefix="shoal-site-") as scratch:
        for part in PARTS:
            source, place = root / part, Path(scratch) / part
            place.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, place)
            else:
                shutil.copy(source, place)
        run = subprocess.run(
            [
                sys.executable,
                "-m",
                "zensical",
                "build",
                "--strict",
                "--config-file",
                "zensical.toml",
            ],
            cwd=scratch,
            check=False,
            capture_output=True,
            text=True,
        )
        if run.returncode or not (Path(scratch) / "site").is_dir():
            raise SiteError(_read_report(run.stdout + run.stderr))
        shutil.move(Path(scratch) / "site", to)


def _read_report(output: str) -> str:
    """Return the lines of zensical's report without its excerpts of the source."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    found = re.findall(r"(?:Warning|Error): (.*)\n\s*╭─\[ (\S+) \]", plain)
    return "\n".join(f"{place}: {what}" for what, place in found) or plain


def problems(site: Path, root: Path = ROOT) -> list[str]:
    """Yield all failed checks of a built site, as sentences."""
    pages = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    linked: set[Path] = set()
    found: list[str] = []
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        for link in page.links:
            target, why = _target(site, path, link, pages)
            if why:
                found.append(f"{name}: {link} {why}.")
            elif target is not None and target != path:
                linked.add(target)
        found += [f"{name}: loads {load}." for load in page.loads if _is_elsewhere(load)]
        found += [
            f"{name}: loads {load}, which is not there."
            for load in page.loads
            if not _is_elsewhere(load) and not _file(path, load, site)
        ]
        if not page.policy.startswith(POLICY):
            found.append(f"{name}: does not forbid browsers to load from elsewhere.")
    found += [
        f"{path.relative_to(site).as_posix()}: no page links to it."
        for path in pages
        if path not in linked and path.name != "404.html"
    ]
    return found + list(_styles(site)) + list(_unbuilt(site, root / "docs"))


def _read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text("utf-8"))
    page.close()
    return page


def _target(site: Path, page: Path, link: str, pages: dict[Path, Page]) -> tuple[Path | None, str]:
    """Return the file of a link, and the problem with it."""
    if urlsplit(link).scheme in ("http", "https", "mailto"):
        return None, ""
    place, anchor = urldefrag(link)
    target = page if not place else _file(page, place, site)
    if target is None:
        return None, "leads nowhere"
    if anchor and target in pages and unquote(anchor) not in pages[target].anchors:
        return target, "leads to no such place of the page"
    return target, ""


def _file(page: Path, place: str, site: Path) -> Path | None:
    """Return the file of the site for a relative address on a page."""
    path = unquote(urlsplit(place).path)
    target = (site / path.lstrip("/") if path.startswith("/") else page.parent / path).resolve()
    target = target / "index.html" if target.is_dir() else target
    return target if target.is_file() and target.is_relative_to(site.resolve()) else None


def _is_elsewhere(address: str) -> bool:
    return bool(urlsplit(address).scheme or urlsplit(address).netloc)


def _styles(site: Path) -> Iterator[str]:
    for path in sorted(site.rglob("*.css")):
        for address in re.findall(
            r"""(?:url\(|@import\s+(?!url))\s*["']?([^"')\s;]+)""", path.read_text("utf-8")
        ):
            if _is_elsewhere(address) and not address.startswith("data:"):
                yield f"{path.relative_to(site).as_posix()}: loads {address}."


def _unbuilt(site: Path, docs: Path) -> Iterator[str]:
    for path in sorted(docs.rglob("*.md")):
        name = path.relative_to(docs)
        if not (site / name.with_suffix(".html")).is_file():
            yield f"docs/{name.as_posix()} is not part of the site."


def main() -> int:
    """Build, check, and move into place."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.site", description="Build the documentation site and check it."
    )
    parser.add_argument(
        "--to", type=Path, default=ROOT / "site", help="where to put it; what is there is replaced"
    )
    to: Path = parser.parse_args().to
    with tempfile.TemporaryDirectory(prefix=".site-", dir=to.resolve().parent) as scratch:
        made = Path(scratch) / "site"
        try:
            build(made)
        except SiteError as error:
            print(error, file=sys.stderr)
            return 1
        wrong = problems(made.resolve())
        if wrong:
            print(
                "\n".join([*wrong, f"{len(wrong)} things do not hold; nothing was replaced."]),
                file=sys.stderr,
            )
            return 1
        if to.exists():
            to.rename(Path(scratch) / "old")
        made.rename(to)
    print(f"wrote     {to / 'index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
