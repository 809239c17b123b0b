"""Releases to check and to spoil: of both variants, of classes and of a number, made from made-up rows."""

from __future__ import annotations

import csv
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.crypto.roster import Identity
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.dataset import draw
from shoal.protocols.pfds.paper_population import simulate_paper
from shoal.protocols.pfds.params import Rows
from shoal.protocols.pfds.population import simulate
from shoal.releases.artefact import _CONTEXT, DOCUMENT, SIGNATURE
from shoal.releases.content import Release, counted_rows
from shoal.study.load import parse
from shoal.study.manifest import Manifest, Member
from shoal.study.pfds import params_of
from shoal.study.spec import Study
from shoal.study.templates import example_csv, study_text

NORTH = Identity.from_seed(bytes(32))
SOUTH = Identity.from_seed(bytes(31) + b"\1")
N_ROWS = 2000


def study_of(*edits: tuple[str, str]) -> Study:
    """The starter study with changes."""
    text = study_text("pfds")
    for old, new in (("size = 40000", f"size = {N_ROWS}"), *edits):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return parse(text)


SUMS = ('trust = "local"', 'trust = "secure-sum"')
NUMBER = ('values = ["no", "yes"]', "range = [-1, 1]")
PAPER = ('variant = "plus"', 'variant = "paper"')
NOT_MISSING = ("range = [0, 730]", "range = [0, 730]\nmissing = false")


@cache
def release_of(*edits: tuple[str, str], n_rows: int = 500, is_simulated: bool = False, roster: tuple[Member, ...] = ()) -> Release:
    """What comes of a study with changes."""
    study = study_of(*edits)
    manifest, params, entropy = Manifest(study, roster=roster), params_of(study), SeededEntropy("release cases")
    columns = real_rows(study)
    encoded, labels = params.schema.encode(columns), params.schema.encode_label(columns)
    whose = np.arange(N_ROWS) % params.n_holders
    if params.variant == "paper":
        return Release(manifest, simulate_paper(params, encoded, labels, whose, entropy).datasets[0], is_simulated)
    learned = simulate(params, Rows.of(params, encoded, labels, whose), manifest.digest, entropy)
    counted = counted_rows(params, learned.answers, params.n_holders)
    return Release(manifest, draw(learned.model, n_rows, entropy), is_simulated, learned.model, counted)


def real_rows(study: Study) -> dict[str, npt.NDArray[Any]]:
    """Made-up rows that fit a study, as a table."""
    header, *rows = csv.reader(io.StringIO(example_csv(study, N_ROWS, SeededEntropy("real rows"))))
    return {name: np.array([cell or None for cell in column], object) for name, column in zip(header, zip(*rows, strict=True), strict=True)}


def resign(directory: Path, document: bytes | dict[str, Any], identity: Identity = NORTH) -> None:
    """Put another document in place of the signed one, and sign it."""
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    (directory / DOCUMENT).write_bytes(data)
    (directory / SIGNATURE).write_text(f"ed25519 {identity.public.hex()} {identity.sign(_CONTEXT + data).hex()}\n")
