"""What it costs a participant to read an offer before consent, measured in a child process.

``python -m tests.support.offer_cost`` reads a manifest from standard input, does with it what
``shoal join`` does before consent, draws an example from one row, and prints JSON: the seconds, the
growth of memory in megabytes, and the code of the error if the manifest was refused. Memory and
processor time of the process are limited, so that a manifest without a bound cannot harm the
machine that tests.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.join.view import format_details, format_label, make_label_data
from shoal.clock import SystemClock
from shoal.crypto.identity import Identity
from shoal.data.schema import Categorical, Columns, Numeric, Schema, as_columns
from shoal.entropy import SystemEntropy
from shoal.errors import ShoalError
from shoal.participant.consent import price_offer, refuse_if_over_limits
from shoal.participant.ledger_file import LedgerFile
from shoal.participant.offers import Offer, make_joined_study
from shoal.participant.preview import draw_example
from shoal.study.delivery import check_delivery
from shoal.study.handle import StudyHandle
from shoal.study.manifest import Manifest

MAX_SECONDS, MAX_MEGABYTES = 10, 2_000
"""Limits of the child process."""
ME = Identity.from_seed(bytes(32))
"""The participant; a roster that names this key has an example."""


@dataclass(frozen=True)
class OfferCost:
    """The cost of reading an offer; `refused` is the code of the error, if there is one."""

    seconds: float
    megabytes: float
    refused: str | None


def measure_offer(manifest: bytes) -> OfferCost:
    """Read an offer in a child process, and return what it costs."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.offer_cost"],
        input=manifest,
        capture_output=True,
        timeout=4 * MAX_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2_000:]
    return OfferCost(**json.loads(done.stdout))


def read_offer(data: bytes) -> None:
    """Do what ``shoal join`` does with a manifest before consent."""
    manifest = Manifest.from_bytes(data)
    check_delivery(manifest)
    offer = Offer("https://study.example", StudyHandle(manifest), bytes(32))
    study, clock = offer.study, SystemClock()
    with (
        tempfile.TemporaryDirectory() as folder,
        LedgerFile(Path(folder) / "ledger.db", clock) as ledger,
    ):
        make_joined_study(offer, "rows.csv")
        priced = price_offer(study, ledger, "rows.csv", clock.now(), "direct")
        shown = [
            format_label(priced, "directly"),
            format_details(priced, offer.url, offer.key),
            json.dumps(make_label_data(priced)),
        ]
        assert all(shown)
        # A person may raise the limit, and reads the label in any case.
        with suppress(ShoalError):
            refuse_if_over_limits(priced, ledger, clock.now(), None)
    rows = study.encode_rows(_make_row(study.study.schema()))
    draw_example(study, rows, ME, SystemEntropy(), clock.now())


def _make_row(schema: Schema) -> Columns:
    assert schema.label is not None
    cells: dict[str, list[object]] = {text.name: ["some words"] for text in schema.texts}
    for feature in (*schema.features, schema.label):
        match feature:
            case Categorical(name, values):
                cells[name] = [values[-1]]
            case Numeric(name, low, _):
                cells[name] = [low]
    return as_columns(cells)


def main() -> None:
    """Measure the manifest on standard input."""
    # Memory is limited by address space; libraries reserve much that they never use.
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEGABYTES << 20,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS + 1))
    data = sys.stdin.buffer.read()
    before, started, refused = _read_peak(), time.process_time(), None
    try:
        read_offer(data)
    except ShoalError as error:
        refused = error.code
    except MemoryError:
        refused = "MemoryError"
    print(
        json.dumps(
            {
                "seconds": time.process_time() - started,
                "megabytes": _read_peak() - before,
                "refused": refused,
            }
        )
    )


def _read_peak() -> float:
    """Return the largest resident memory of this process so far, in megabytes."""
    # The figure of getrusage begins with that of the parent.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


if __name__ == "__main__":
    main()
