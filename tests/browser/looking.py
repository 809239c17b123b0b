"""One who visits pages and notes what went wrong; and what everyone must be able to perceive and reach on a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_FAULTS = """
() => {
  const faults = [];
  const shown = (node) => node.checkVisibility({ visibilityProperty: true }) && !node.closest(".unseen");
  const say = (what, node) => faults.push(`${what}: ${node.outerHTML.slice(0, 120)}`);

  if (!document.documentElement.lang) faults.push("the page has no language");
  if (!document.title) faults.push("the page has no title");
  if (document.querySelectorAll("main").length !== 1) faults.push("there is not one main landmark");
  const headings = [...document.querySelectorAll("h1, h2, h3, h4")].filter(shown).map((node) => Number(node.tagName[1]));
  if (headings.filter((level) => level === 1).length !== 1) faults.push("there is not one first heading");
  headings.forEach((level, i) => { if (level > (i ? headings[i - 1] : 0) + 1) faults.push(`heading ${i} skips a level`); });

  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  if (new Set(ids).size !== ids.length) faults.push("an id is used twice");
  for (const node of document.querySelectorAll("[aria-labelledby], [aria-describedby], [for]"))
    for (const name of ["aria-labelledby", "aria-describedby", "for"])
      if (node.hasAttribute(name) && !document.getElementById(node.getAttribute(name))) say(`${name} leads nowhere`, node);
  for (const node of document.querySelectorAll("img")) if (!node.hasAttribute("alt")) say("an image has no name", node);
  for (const node of document.querySelectorAll("svg"))
    if (node.getAttribute("role") !== "img" || !node.getAttribute("aria-label")) say("a picture has no name", node);
  for (const node of document.querySelectorAll("input, textarea, select, progress"))
    if (!node.labels || !node.labels.length) say("a field has no label", node);
  for (const node of document.querySelectorAll("a, button, summary")) if (!node.textContent.trim()) say("a control has no name", node);
  for (const node of document.querySelectorAll("a")) if (!node.getAttribute("href")) say("a link leads nowhere", node);
  for (const node of document.querySelectorAll("[style], [onclick], [onload]")) say("an attribute that the policy forbids", node);

  const parts = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (let place = node; place; place = place.parentElement) {
      const colour = parts(getComputedStyle(place).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
      if (colour[3] > 0) return null;
    }
    return [255, 255, 255];
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    const node = text.parentElement;
    if (!text.data.trim() || !shown(node) || node.closest("script, style, noscript, option")) continue;
    const style = getComputedStyle(node), ground = behind(node);
    if (!ground) { say("a text stands on what can be seen through", node); continue; }
    const [high, low] = [light(parts(style.color)), light(ground)].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const contrast = (high + 0.05) / (low + 0.05);
    if (contrast < (isLarge ? 3 : 4.5)) say(`contrast ${contrast.toFixed(2)}`, node);
  }
  return faults;
}
"""

_REACHABLE = """
() => [...document.querySelectorAll("a[href], button, input, textarea, summary, [tabindex='0']")]
  .filter((node) => node.checkVisibility({ visibilityProperty: true }) && !node.disabled && node.type !== "hidden")
  .map((node) => node.dataset.place = String([...document.querySelectorAll("*")].indexOf(node)))
"""

_FOCUSED = """
() => {
  const node = document.activeElement, style = getComputedStyle(node);
  const isSeen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 && node.getBoundingClientRect().bottom > 0;
  return [node.dataset.place ?? null, isSeen];
}
"""


@dataclass
class Visitor:
    """A page in a browser, and all that went wrong in it, or left for another origin."""

    page: Any
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def goto(self, url: str) -> Any:
        return self.page.goto(url)

    def check(self, origin: str, *, refused: int = 0) -> None:
        """Hold everything so far against a page that works: no error but so many refusals that were meant, no other origin."""
        meant = [error for error in self.errors if error.startswith("Failed to load resource: the server responded with a status of 4")]
        assert [error for error in self.errors if error not in meant] == []
        assert len(meant) == refused, meant
        assert {urlsplit(url)._replace(path="", query="", fragment="").geturl() for url in self.requests} <= {origin}

    def faults(self) -> list[str]:
        """What somebody cannot perceive or use."""
        found: list[str] = self.page.evaluate(_FAULTS)
        return found

    def is_too_wide(self) -> bool:
        found: bool = self.page.evaluate("() => document.documentElement.scrollWidth > window.innerWidth")
        return found

    def tab_through(self) -> tuple[list[str], list[str], bool]:
        """What there is to reach, what the tabulator reaches, in order, and whether the focus can be seen at each."""
        there: list[str] = self.page.evaluate(_REACHABLE)
        reached, are_seen = [], True
        for _ in range(len(there)):
            self.page.keyboard.press("Tab")
            place, is_seen = self.page.evaluate(_FOCUSED)
            reached.append(place)
            are_seen = are_seen and is_seen
        return there, reached, are_seen
