"""Documents of commands and coordinators, and a parser that finds active content."""

from __future__ import annotations

import copy
import json
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

from shoal import __version__
from shoal.coordinator.studies import encode_result
from shoal.entropy import SeededEntropy
from shoal.protocols.base import AGGREGATOR, run_local
from shoal.study.handle import StudyHandle
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from shoal.study.starters import read_starter
from tests.support.coordinator import make_aggregator, make_manifest, make_peers, make_record

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; --><svg onload=alert(1)>",
    "abc\u202egnp.exe\u2066",
    "x" * 10_000,
    "\U0001f41f\u200d\U0001f41f\ufe0f fish & chips </style></title>",
    "\x1b[2J\x00 ]]> &lt; \ud800",
)

DETAILS: dict[str, Any] = {
    "participation": {
        "asked": 450,
        "answered": 431,
        "dropped": 19,
        "phases": [{"name": "placing", "n": 31}, {"name": "answers", "n": 400}],
        "refused": {"spam": 3},
    },
    "calibration": {
        "of": "yes",
        "bins": [
            {"low": 0.1, "high": 0.2, "predicted": 0.15, "observed": 0.125, "n": 40},
            {"low": 0.8, "high": 0.9, "predicted": 0.84, "observed": 0.78125, "n": 64},
        ],
    },
    "histograms": [
        {
            "feature": "hours_watched",
            "cells": ["<= 10", "> 10"],
            "classes": ["no", "yes"],
            "estimated": [[0.25, -0.0125], [0.3, 0.4625]],
            "error": [[0.02, 0.02], [0.03, 0.03]],
            "true": [[0.24, 0.01], [0.31, 0.44]],
        }
    ],
    "weights": [{"name": "hours_watched > 10", "class": "yes", "value": 0.3125, "error": 0.05}],
    "spread": {
        "k": 20,
        "sigma_squared": 0.25,
        "expected": 2.5,
        "measured": [[0, 0.5], [100, 2.0], [200, 2.375]],
    },
    "exposure": [
        {"colluders": 0, "epsilon": 0.75, "claimed": True},
        {"colluders": 1, "epsilon": 1.0, "claimed": True},
        {"colluders": 2, "epsilon": 1.5, "claimed": False},
        {"colluders": 3, "epsilon": None, "claimed": False},
    ],
    "marginals": [
        {
            "feature": "country",
            "cells": ["north", "other"],
            "released": [0.4, 0.6],
            "true": [0.375, 0.625],
        }
    ],
    "train_on_released": {
        "synthetic": {"accuracy": 0.8125, "auc": 0.9},
        "real": {"accuracy": 0.875, "auc": 0.9375},
    },
}
DETAIL_SECTIONS = {
    "participation": "participation",
    "calibration": "calibration",
    "histograms": "histograms",
    "weights": "weights",
    "spread": "spread",
    "exposure": "exposure",
    "marginals": "released",
    "train_on_released": "released",
}
"""The section of the report for each key of the details."""


def make_point(epsilon: float, accuracy: float, **more: Any) -> dict[str, Any]:
    """Return a point of three runs, as `shoal simulate` writes it."""
    total = {
        "unit": "person",
        "relation": "replace",
        "adversary": "everyone",
        "epsilon": epsilon,
        "delta": 0.0,
        "how": "plain sum",
    }
    return {
        "settings": {},
        "minimum": 100,
        "declared": 20_000,
        "people": 450,
        "answers": [450],
        "total": total,
        "charged": total,
        "paper_epsilon": None,
        "central": None,
        "scores": {
            "accuracy": {"value": accuracy, "error": 0.0125},
            "auc": {"value": 0.84375, "error": 0.015625},
        },
        "runs": [{"accuracy": accuracy, "auc": 0.84375}] * 3,
        "model": "model.json",
        **more,
    }


def make_run_document(
    protocol: str = "anonml", *, points: list[dict[str, Any]] | None = None, **more: Any
) -> dict[str, Any]:
    """Return a run of a starter study with the required fields only."""
    study = parse_study_text(read_starter(protocol))
    manifest = Manifest(study)
    return copy.deepcopy(
        {
            "simulated": True,
            "remark": "a simulation: nothing was sent",
            "command": "shoal simulate study.toml --data rows.csv --seed 7 --repeats 3",
            "title": study.title,
            "protocol": protocol,
            "digest": manifest.digest.hex(),
            "short": manifest.short_digest,
            "study": study.to_content(),
            "seed": 7,
            "repeats": 3,
            "dropout": 0.0,
            "versions": {"shoal": __version__, "python": "3.11.7"},
            "rows": {"asked": 450, "unseen": 150, "declared": 20_000},
            "points": points or [make_point(2.0, 0.8125)],
            "most_common": {"accuracy": 0.546875, "auc": 0.5},
            "without_privacy": {"accuracy": 0.890625, "auc": 0.9375},
            "f1_of": "yes",
            **more,
        }
    )


def make_run_with_details(*names: str, protocol: str = "anonml") -> dict[str, Any]:
    """Return a run with one point that contains some details."""
    return make_run_document(
        protocol, points=[make_point(2.0, 0.8125, details={name: DETAILS[name] for name in names})]
    )


def make_comparison_document(**more: Any) -> dict[str, Any]:
    """Return a comparison of two alternatives."""

    def entry(name: str, protocol: str, accuracy: float, **rest: Any) -> dict[str, Any]:
        return {
            "name": name,
            "protocol": protocol,
            "variant": "plus",
            "trust": "local",
            "settings": {},
            "epsilon": 1.0,
            "delta": 0.0,
            "unit": "person",
            "relation": "replace",
            "adversary": "everyone",
            "central": None,
            "trusted": "nobody",
            "scores": {"accuracy": {"value": accuracy, "error": 0.0078125}},
            "runs": [{"accuracy": accuracy}] * 5,
            "bytes": 142.0,
            "messages": 1.0,
            "cpu_seconds": 0.25,
            "n_participants": 450,
            "study": {},
            **rest,
        }

    crowd = {
        "epsilon": 0.125,
        "delta": 1e-6,
        "adversary": "those who see the shuffled batches only",
    }
    return {
        "compared": True,
        "simulated": True,
        "remark": "a simulation: nothing was sent",
        "command": "shoal compare study.toml --data rows.csv",
        "title": "Who finishes the course?",
        "digest": "ab" * 32,
        "short": "abab-abab-abab",
        "seed": 0,
        "repeats": 5,
        "rows": {"asked": 450, "unseen": 150, "declared": 20_000},
        "versions": {"shoal": __version__},
        "measure": "accuracy",
        "yardsticks": {"most_common": {"accuracy": 0.5}, "without_privacy": {"accuracy": 0.9375}},
        "entries": [
            entry("AnonML plus, shuffled", "anonml", 0.8125, central=crowd),
            entry(
                "SDQ plus, tree",
                "sdq",
                0.90625,
                unit="record",
                relation="add-remove",
                adversary="the miner",
                bytes=None,
                messages=None,
            ),
        ],
        "left_out": [{"name": "DDML", "why": "this label has three classes"}],
        **more,
    }


def make_audit_document(**more: Any) -> dict[str, Any]:
    """Return the document that an audit prints."""
    return {
        "unit": "person",
        "relation": "replace",
        "adversary": "everyone",
        "epsilon": 2.0,
        "delta": 0.0,
        "bound": 1.6875,
        "confidence": 0.999,
        "samples": 4000,
        "verdict": "consistent",
        "study": "study.toml",
        "title": "Who finishes the course?",
        "ledger": 2.0,
        "packets": 1,
        "phases": 1,
        "rows": ["one", "another"],
        "seen_in": "the answers",
        **more,
    }


def make_result_document(name: str) -> dict[str, Any]:
    """Return the result of a study that a coordinator publishes; runs it in this process."""
    manifest = make_manifest(name)
    aggregator = make_aggregator(manifest, make_record(name))
    assert aggregator is not None
    ended = run_local(aggregator, make_peers(name), SeededEntropy(3)).results[AGGREGATOR]
    document: dict[str, Any] = json.loads(encode_result(StudyHandle(manifest), ended))
    return document


def compute_price(protocol: str) -> float:
    """Return the epsilon of a starter study."""
    return make_plan(parse_study_text(read_starter(protocol))).loss.epsilon


class Page(HTMLParser):
    """The content of a page by element, as a browser would read it."""

    VOID = ("meta", "br", "hr")

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.values: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.unclosed: list[str] = []
        self._section = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append((tag, given))
        if tag == "section":
            self._section = given["id"]
        if tag == "data":
            self.values.append((self._section, given["value"]))
        if tag not in self.VOID:
            self.unclosed.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.unclosed.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if "style" not in self.unclosed:
            self.words.append(data)

    @property
    def text(self) -> str:
        """The visible text, in one line."""
        return " ".join("".join(self.words).split())

    @property
    def sections(self) -> list[str]:
        """The ids of the sections, in order."""
        return [given["id"] for tag, given in self.tags if tag == "section"]


def parse_pictures(text: str) -> list[ElementTree.Element]:
    """Return the pictures of a page, parsed as strict XML."""
    parts = text.split("<svg ")[1:]
    return [
        ElementTree.fromstring("<svg " + part.partition("</svg>")[0] + "</svg>") for part in parts
    ]


def check_inert(text: str) -> Page:
    """Return the page after a check that nothing in it runs, loads, sends or links elsewhere."""
    page = Page(text)
    assert page.unclosed == []
    names = {name for name, _ in page.tags}
    assert names.isdisjoint(
        {
            "script",
            "iframe",
            "object",
            "embed",
            "link",
            "img",
            "image",
            "base",
            "form",
            "use",
            "foreignobject",
            "a:href",
        }
    )
    for _, given in page.tags:
        assert not [key for key in given if key.startswith("on")]
        assert given.get("href", "#").startswith("#")
        assert "src" not in given and "xlink:href" not in given
        assert all("javascript:" not in value and "url(" not in value for value in given.values())
        assert all(
            "http" not in value
            for key, value in given.items()
            if key not in ("xmlns", "http-equiv")
        )
    policies = [
        given["content"] for name, given in page.tags if name == "meta" and given.get("http-equiv")
    ]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]
    assert not set("\u202e\u2066\x1b\x00\ud800") & set(text)
    for picture in parse_pictures(text):
        assert picture.get("role") == "img"
        assert picture[0].tag.endswith("title") and picture[0].text
    return page
