"""Releases of both variants, with classes and with a number, from generated rows."""

from __future__ import annotations

import csv
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.crypto.identity import Identity
from shoal.entropy import SeededEntropy
from shoal.protocols.pfds.dataset import draw_dataset
from shoal.protocols.pfds.paper.population import simulate_paper
from shoal.protocols.pfds.params import PFDSRows
from shoal.protocols.pfds.population import simulate
from shoal.releases.artifact import _CONTEXT, DOCUMENT, SIGNATURE
from shoal.releases.content import PFDSRelease, compute_noisy_row_count
from shoal.study.loader import parse_study_text
from shoal.study.manifest import Manifest, RosterMember
from shoal.study.pfds import build_params
from shoal.study.spec import Study
from shoal.study.starters import make_example_csv, read_starter

NORTH = Identity.from_seed(bytes(32))
SOUTH = Identity.from_seed(bytes(31) + b"\1")
N_ROWS = 2000


def make_study(*edits: tuple[str, str]) -> Study:
    """Return the starter study with changes."""
    text = read_starter("pfds")
    for old, new in (("size = 40000", f"size = {N_ROWS}"), *edits):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return parse_study_text(text)


SUMS = ('trust = "local"', 'trust = "secure-sum"')
NUMBER = ('values = ["no", "yes"]', "range = [-1, 1]")
PAPER = ('variant = "plus"', 'variant = "paper"')
NOT_MISSING = ("range = [0, 730]", "range = [0, 730]\nmissing = false")


@cache
def make_release(
    *edits: tuple[str, str],
    n_rows: int = 500,
    is_simulated: bool = False,
    roster: tuple[RosterMember, ...] = (),
) -> PFDSRelease:
    """Return the release of a study with changes."""
    study = make_study(*edits)
    manifest, params, entropy = (
        Manifest(study, roster=roster),
        build_params(study),
        SeededEntropy("release cases"),
    )
    columns = real_rows(study)
    encoded, labels = params.schema.encode(columns), params.schema.encode_label(columns)
    whose = np.arange(N_ROWS) % params.n_holders
    if params.variant == "paper":
        return PFDSRelease(
            manifest,
            simulate_paper(params, encoded, labels, whose, entropy).datasets[0],
            is_simulated,
        )
    learned = simulate(
        params, PFDSRows.from_columns(params, encoded, labels, whose), manifest.digest, entropy
    )
    counted = compute_noisy_row_count(params, learned.answers, params.n_holders)
    return PFDSRelease(
        manifest, draw_dataset(learned.model, n_rows, entropy), is_simulated, learned.model, counted
    )


def real_rows(study: Study) -> dict[str, npt.NDArray[Any]]:
    """Return synthetic rows that fit a study, as a table."""
    header, *rows = csv.reader(
        io.StringIO(make_example_csv(study, N_ROWS, SeededEntropy("real rows")))
    )
    return {
        name: np.array([cell or None for cell in column], object)
        for name, column in zip(header, zip(*rows, strict=True), strict=True)
    }


def resign(directory: Path, document: bytes | dict[str, Any], identity: Identity = NORTH) -> None:
    """Replace the signed document by another one, and sign it."""
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    (directory / DOCUMENT).write_bytes(data)
    (directory / SIGNATURE).write_text(
        f"ed25519 {identity.public_key.hex()} {identity.sign(_CONTEXT + data).hex()}\n"
    )
