"""Fetch the public datasets that tests and benchmarks use.

``python tools/data.py [NAME ...] [--to DIR] [--mirror URL] [--json]``. ``tools/datasets.toml``
states the source and the published form of each dataset, and the sha256 of the resulting table. A
correct file is not fetched again, a wrong one is never written, and files are written atomically.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import os
import re
import shlex
import struct
import sys
import tomllib
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import httpx2
import numpy as np

from shoal.cli.output import emit, emit_error
from shoal.errors import IntegrityError, ShoalError, StoreError, TransportError, UsageError

MAX_BYTES = 64 << 20
"""Upper bound of the size of archives and of the files in them; none comes near it."""
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    csv.Error,
    struct.error,
    EOFError,
    OSError,
    LookupError,
    RuntimeError,
    ValueError,
)
"""Errors of the standard library for broken or incomplete archives and wrong tables."""
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
IDX_OF_BYTES = b"\0\0\x08"


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One entry of ``datasets.toml``; the head of that file explains the fields."""

    name: str
    source: str
    licence: str
    url: str
    files: list[str]
    form: str
    sha256: str
    header: str = ""
    delimiter: str = ","

    @property
    def file_name(self) -> str:
        """The file name that tests and benchmarks expect."""
        return self.name + (".npz" if self.form == "idx" else ".csv.gz")


def text(raw: bytes) -> IO[str]:
    """Return a published file as a stream for the csv module, with unchanged line ends."""
    return io.StringIO(raw.decode(), newline="")


def plain(dataset: Dataset, files: list[bytes]) -> Iterator[list[str]]:
    """Yield rows of a delimited file, without quotes, leading spaces and empty lines."""
    return (
        row
        for row in csv.reader(text(files[0]), delimiter=dataset.delimiter, skipinitialspace=True)
        if row
    )


def arff(dataset: Dataset, files: list[bytes]) -> Iterator[list[str]]:
    """Yield rows of an ARFF file; its attribute names are not used."""
    _, rows = re.split(rb"(?im)^@data\s*$", files[0], maxsplit=1)
    return plain(dataset, [rows])


def adult(dataset: Dataset, files: list[bytes]) -> Iterator[list[str]]:
    """Yield train and test rows.

    The test file begins with a comment, and a full stop ends its labels.
    """
    for split, raw in zip(("train", "test"), files, strict=True):
        for row in plain(dataset, [raw]):
            if not row[0].startswith("|"):
                yield [*row[:-1], row[-1].removesuffix("."), split]


def mean(values: list[float]) -> str:
    """Return a mean with up to three decimals, or an empty text for no values."""
    return f"{round(sum(values) / len(values), 3):g}" if values else ""


def oulad(dataset: Dataset, files: list[bytes]) -> Iterator[list[str]]:
    """Yield one row per student and course, with the work handed in by day 60.

    Late, early and unmarked work is included, but none that was carried over.
    """
    info, registrations, submissions, assessments = (
        list(csv.DictReader(text(raw))) for raw in files
    )
    courses = {
        each["id_assessment"]: (each["code_module"], each["code_presentation"], each["date"])
        for each in assessments
    }
    registered = {
        (each["code_module"], each["code_presentation"], each["id_student"]): each
        for each in registrations
    }
    handed_in: dict[tuple[str, str, str], list[tuple[str, str, int]]] = defaultdict(list)
    for each in submissions:
        day = int(each["date_submitted"])
        if day <= 60 and each["is_banked"] == "0":
            module, presentation, due = courses[each["id_assessment"]]
            handed_in[module, presentation, each["id_student"]].append((each["score"], due, day))
    for each in sorted(
        info, key=lambda row: (row["code_module"], row["code_presentation"], int(row["id_student"]))
    ):
        key = (each["code_module"], each["code_presentation"], each["id_student"])
        leads = [float(due) - day for _, due, day in handed_in[key] if due != "?"]
        row = {
            **each,
            **registered[key],
            "imd_band": {"10-20": "10-20%"}.get(each["imd_band"], each["imd_band"]),
            "n_submitted_d60": str(len(handed_in[key])),
            "mean_score_d60": mean(
                [float(score) for score, _, _ in handed_in[key] if score != "?"]
            ),
            "n_late_d60": str(sum(lead < 0 for lead in leads)),
            "mean_lead_days_d60": mean(leads),
            "withdrawn": str(int(each["final_result"] == "Withdrawn")),
        }
        yield ["" if row[name] == "?" else row[name] for name in dataset.header.split(",")]


FORMS: dict[str, Callable[[Dataset, list[bytes]], Iterator[list[str]]]] = {
    "plain": plain,
    "arff": arff,
    "adult": adult,
    "oulad": oulad,
}


def to_csv(dataset: Dataset, files: list[bytes]) -> bytes:
    """Return the table as CSV, compressed without a timestamp."""
    rows = [
        *([dataset.header.split(",")] if dataset.header else []),
        *FORMS[dataset.form](dataset, files),
    ]
    if any(len(row) != len(rows[0]) for row in rows):
        raise ValueError("its rows are not all as long as its header")
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return gzip.compress(out.getvalue().encode(), mtime=0)


def to_npz(files: list[bytes]) -> bytes:
    """Return four IDX files as named arrays."""
    arrays: dict[str, Any] = {}
    for name, raw in zip(ARRAYS, files, strict=True):
        kind, n_axes = struct.unpack_from(">3sB", raw)
        if kind != IDX_OF_BYTES:
            raise ValueError("not an IDX file of bytes")
        arrays[name] = np.frombuffer(raw, np.uint8, offset=4 + 4 * n_axes).reshape(
            struct.unpack_from(f">{n_axes}I", raw, 4)
        )
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def digest(dataset: Dataset, packed: bytes) -> str:
    """Return the sha256 of a finished file's content, independent of its compression."""
    if dataset.form != "idx":
        return hashlib.sha256(
            read_limited(gzip.GzipFile(fileobj=io.BytesIO(packed)), dataset.file_name)
        ).hexdigest()
    found = hashlib.sha256()
    with np.load(io.BytesIO(packed)) as arrays:
        for array in (arrays[name] for name in ARRAYS):
            found.update(
                struct.pack(f">3sB{array.ndim}I", IDX_OF_BYTES, array.ndim, *array.shape)
                + array.tobytes()
            )
    return found.hexdigest()


def is_there(dataset: Dataset, path: Path) -> bool:
    """Return whether the finished file exists and has the right content."""
    try:
        return digest(dataset, path.read_bytes()) == dataset.sha256
    except (*UNREADABLE, IntegrityError):
        return False


def too_large(name: str) -> IntegrityError:
    """Return the error for a file that is too large to be one of the datasets."""
    return IntegrityError(
        "DATA-104",
        f"{name} is larger than {MAX_BYTES >> 20} MiB.",
        why="The datasets are smaller: this is something else.",
    )


def read_limited(stream: IO[bytes] | gzip.GzipFile, name: str) -> bytes:
    """Return the whole content of a compressed stream, up to a limit."""
    data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise too_large(name)
    return data


def download(client: httpx2.Client, url: str, down: dict[str, TransportError]) -> bytes:
    """Return the bytes at an address.

    ``down`` contains unreachable hosts, so that each is tried once.
    """
    host = urlsplit(url).netloc
    if host in down:
        raise down[host]
    print(f"fetching {url}", file=sys.stderr)
    body: bytearray | None = None
    try:
        with client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as response:
            if response.status_code != httpx2.codes.OK:
                what = f"{url} is not to be had: its host answers {response.status_code}."
                raise TransportError(
                    "DATA-102", what, fix="Try again later, or name a mirror: --mirror URL"
                )
            body = bytearray()
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise too_large(url)
    except (httpx2.HTTPError, httpx2.InvalidURL) as problem:
        why = " ".join(str(problem).split()) or type(problem).__name__
        if body is not None:
            what = f"{url} broke off after {len(body)} bytes."
            raise TransportError(
                "DATA-103", what, why=why, fix="Try again; what is there already is kept."
            ) from None
        fix = "Check the network (behind a proxy, set HTTPS_PROXY), or name a mirror: --mirror URL"
        down[host] = TransportError(
            "DATA-101", f"{host or url} cannot be reached.", why=why, fix=fix
        )
        raise down[host] from None
    return bytes(body)


def fetch_files(dataset: Dataset, get: Callable[[str], bytes]) -> Iterator[bytes]:
    """Return the source files of a dataset, uncompressed."""
    if dataset.url.endswith("/"):
        for name in dataset.files:
            yield read_limited(gzip.GzipFile(fileobj=io.BytesIO(get(dataset.url + name))), name)
        return
    archive = get(dataset.url)
    for name in dataset.files:
        content = archive
        for member in name.split("!"):
            with zipfile.ZipFile(io.BytesIO(content)) as opened, opened.open(member) as stream:
                content = read_limited(stream, member)
        yield content


def make(dataset: Dataset, get: Callable[[str], bytes]) -> bytes:
    """Fetch, convert and check a dataset."""
    try:
        files = list(fetch_files(dataset, get))
        packed = to_npz(files) if dataset.form == "idx" else to_csv(dataset, files)
    except UNREADABLE as problem:
        why = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        raise IntegrityError(
            "DATA-105", f"{dataset.name}: what was fetched is not what is published there.", why=why
        ) from None
    if (found := digest(dataset, packed)) != dataset.sha256:
        why = (
            f"Its sha256 is {found} instead of {dataset.sha256}: the source, or its conversion, "
            "is not what it was."
        )
        raise IntegrityError(
            "DATA-106",
            f"{dataset.name} is not the dataset that tests and benchmarks are written for.",
            why=why,
        )
    return packed


def write(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(data)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as problem:
        fix = "Make room, or name another directory: --to DIR"
        raise StoreError(
            "DATA-107", f"{path} cannot be written: {problem.strerror}.", fix=fix
        ) from None


def run(names: list[str], to: Path, mirror: str | None, *, json: bool) -> int:
    """Fetch missing datasets, report the result of each, and return the exit code."""
    listed = tomllib.loads(Path(__file__).with_name("datasets.toml").read_text())
    datasets = {name: Dataset(name=name, **fields) for name, fields in listed["dataset"].items()}
    for name in names:
        if name not in datasets:
            why = listed["left_out"].get(name, "It is not in tools/datasets.toml.")
            raise UsageError(
                "USAGE-001",
                f"{name} cannot be fetched.",
                why=why,
                fix=f"Choose among {', '.join(datasets)}.",
            )
    down: dict[str, TransportError] = {}
    outcome: dict[str, str] = {}
    errors: dict[str, ShoalError] = {}
    with httpx2.Client(follow_redirects=True, timeout=httpx2.Timeout(30, connect=10)) as client:

        def get(url: str) -> bytes:
            return download(
                client, url if mirror is None else mirror.rstrip("/") + urlsplit(url).path, down
            )

        for name in names or datasets:
            dataset = datasets[name]
            try:
                outcome[name] = "already there"
                if not is_there(dataset, to / dataset.file_name):
                    write(to / dataset.file_name, make(dataset, get))
                    outcome[name] = "fetched"
            except ShoalError as error:
                outcome[name] = error.code
                errors[str(error)] = error
    left_out = {} if names else listed["left_out"]
    lines = [
        f"{name:<22}{what:<15}{datasets[name].source} ({datasets[name].licence})"
        for name, what in outcome.items()
    ]
    lines += [f"{name:<22}{'left out':<15}{why}" for name, why in left_out.items()]
    data = {
        "directory": str(to),
        "datasets": outcome,
        "left_out": left_out,
        "errors": [error.to_dict() for error in errors.values()],
    }
    emit(
        data,
        "\n".join(lines),
        json=json,
        next_command=None if errors else f"SHOAL_DATA={shlex.quote(str(to))} make test",
    )
    for problem in [] if json else errors.values():
        emit_error(problem, json=False)
    return next(iter(errors.values())).exit_code if errors else 0


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Fetch the public datasets that tests and benchmarks use."
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="which datasets (default: all)")
    parser.add_argument(
        "--to",
        metavar="DIR",
        type=Path,
        default=Path("data"),
        help="where to write them (default: data)",
    )
    parser.add_argument(
        "--mirror",
        metavar="URL",
        help="fetch from there instead of the publishers' hosts; the paths are the same",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    try:
        return run(arguments.names, arguments.to, arguments.mirror, json=arguments.json)
    except ShoalError as error:
        emit_error(error, json=arguments.json)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
