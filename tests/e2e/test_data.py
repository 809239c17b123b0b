"""``make data`` as a real process, against a mirror on loopback with the raw datasets."""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import io
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SHARED = Path(os.environ.get("SHOAL_DATA", ROOT / "../shared/data"))
LIST = tomllib.loads((ROOT / "tools/datasets.toml").read_text())
DATASETS = LIST["dataset"]
TABLES = [name for name in DATASETS if name != "mnist"]
NURSERY = urlsplit(DATASETS["nursery"]["url"]).path

# Facts about the published files, from their publishers: a raw form that is made here must be
# theirs to the byte.
PUBLISHED = {
    "adult.data": ("sha256", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
    "adult.test": ("sha256", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
    "hour.csv": ("sha256", "e03de4ee4ef4dc376ac6e04bf829673c6269e8eba5c60fa121640fa2f829504f"),
    "train-images-idx3-ubyte.gz": ("md5", "6bbc9ace898e44ae57da46a324031adb"),
    "train-labels-idx1-ubyte.gz": ("md5", "a25bea736e30d166cdddb491f175f624"),
    "t10k-images-idx3-ubyte.gz": ("md5", "2646ac647ad5339dbf082846283269ea"),
    "t10k-labels-idx1-ubyte.gz": ("md5", "27ae3e4e09519cfbb04c329615203637"),
}
BANK_FULL_BYTES = 4_610_348

pytestmark = pytest.mark.skipif(
    not all((SHARED / f"{name}.csv.gz").exists() for name in TABLES)
    or not (SHARED / "mnist.npz").exists(),
    reason="the raw forms are made from the datasets, and they are not in $SHOAL_DATA or "
    "../shared/data",
)


def shared(name: str) -> str:
    return gzip.decompress((SHARED / f"{name}.csv.gz").read_bytes()).decode()


def body(name: str) -> list[str]:
    return shared(name).splitlines()[1:]


def raw_adult() -> dict[str, str]:
    rows = [line.rsplit(",", 1) for line in body("adult")]
    train, test = (
        [row.replace(",", ", ") for row, split in rows if split == part]
        for part in ("train", "test")
    )
    return {
        "adult.data": "\n".join(train) + "\n\n",
        "adult.test": "|1x3 Cross validator\n" + "".join(f"{line}.\n" for line in test) + "\n",
    }


def raw_bank() -> dict[str, bytes]:
    quoted = (
        ";".join(cell if cell.lstrip("-").isdigit() else f'"{cell}"' for cell in line.split(","))
        for line in shared("bank_marketing").splitlines()
    )
    return {"bank-full.csv": ("\n".join(quoted) + "\n").encode()}


def raw_phishing() -> dict[str, str]:
    names = DATASETS["phishing_websites"]["header"].split(",")
    head = [
        "@relation phishing",
        "",
        *(f"@attribute {name}  {{ -1,0,1 }}" for name in names),
        "",
        "@data",
    ]
    return {
        ".old.arff": "@data\n1,2\n",
        "Training Dataset.arff": "\r\n".join([*head, *body("phishing_websites")]),
    }


def raw_retinopathy() -> dict[str, str]:
    head = [
        "@relation dr",
        "",
        *(f"@attribute {number} numeric" for number in range(19)),
        "@attribute Class {0,1}",
        "",
        "@data",
    ]
    return {"messidor_features.arff": "\n".join([*head, *body("diabetic_retinopathy"), ""])}


def whole(count: int, total: int, at_least: int = 0) -> list[int]:
    """Return n whole numbers with a given sum."""
    return [at_least] * (count - 1) + [total - at_least * (count - 1)] if count else []


def invented_work(row: dict[str, str]) -> tuple[list[str], list[int]]:
    """Return marks and days before the due date with the summary of a joined row."""
    n, n_late = int(row["n_submitted_d60"]), int(row["n_late_d60"])
    lead = round(n * float(row["mean_lead_days_d60"] or 0))
    leads = [-1] * n_late + [0] * (n - n_late)
    if leads:
        leads[-1 if lead + n_late > 0 else 0] += lead + n_late
    n_marks, total = 0, 0
    if row["mean_score_d60"]:
        mark = float(row["mean_score_d60"])
        n_marks = next(m for m in range(n, 0, -1) if abs(m * mark - round(m * mark)) < 0.0006 * m)
        total = round(n_marks * mark)
    return [
        *(str(mark) for mark in whole(n_marks, total, total // max(n_marks, 1))),
        *["?"] * (n - n_marks),
    ], leads


def raw_oulad() -> dict[str, str]:
    """Return tables whose join is the published one; the real ones are not available.

    Decoys must not be counted: day 61, and work carried over.
    """
    rows = list(csv.DictReader(io.StringIO(shared("mooc_dropout_oulad"))))
    tables: dict[str, list[list[object]]] = defaultdict(list)
    of_course: dict[tuple[str, str], list[tuple[str, list[str], list[int]]]] = defaultdict(list)
    for row in reversed(rows):
        key = [row["code_module"], row["code_presentation"], row["id_student"]]
        details = [
            row[name]
            for name in (
                "gender",
                "region",
                "highest_education",
                "imd_band",
                "age_band",
                "num_of_prev_attempts",
            )
        ]
        details[3] = {"10-20%": "10-20", "": "?"}.get(details[3], details[3])
        tables["studentInfo.csv"].append(
            [*key, *details, row["studied_credits"], row["disability"], row["final_result"]]
        )
        tables["studentRegistration.csv"].append(
            [*key, row["date_registration"] or "?", row["date_unregistration"] or "?"]
        )
        of_course[key[0], key[1]].append((row["id_student"], *invented_work(row)))
    for number, (course, students) in enumerate(of_course.items()):
        # The last to hand in does so on day 60 itself, which counts.
        due = [
            60 + min((leads[place] for _, _, leads in students if len(leads) > place), default=0)
            for place in range(5)
        ]
        assessments = [10 * number + place for place in range(7)]
        kinds = ["TMA"] * 6 + ["Exam"]
        for assessment, kind, day in zip(assessments, kinds, [*due, 61, "?"], strict=True):
            tables["assessments.csv"].append([*course, assessment, kind, day, "12.5"])
        for student, marks, leads in students:
            for assessment, day, mark, lead in zip(assessments, due, marks, leads, strict=False):
                tables["studentAssessment.csv"].append([assessment, student, day - lead, 0, mark])
            tables["studentAssessment.csv"] += [
                [assessments[5], student, -1, 1, 99],
                [assessments[5], student, 61, 0, 99],
                [assessments[6], student, 230, 0, 5],
            ]
    headers = {
        "studentInfo.csv": "code_module,code_presentation,id_student,gender,region,"
        "highest_education,imd_band,age_band,num_of_prev_attempts,studied_credits,disability,final_result",
        "studentRegistration.csv": "code_module,code_presentation,id_student,"
        "date_registration,date_unregistration",
        "studentAssessment.csv": "id_assessment,id_student,date_submitted,is_banked,score",
        "assessments.csv": "code_module,code_presentation,id_assessment,"
        "assessment_type,date,weight",
    }
    files = {}
    for name, header in headers.items():
        out = io.StringIO(newline="")
        csv.writer(out, quoting=csv.QUOTE_ALL).writerows([header.split(","), *tables[name]])
        files[name] = out.getvalue()
    return files


def raw_mnist() -> dict[str, bytes]:
    with np.load(SHARED / "mnist.npz") as arrays:
        data = [arrays[name] for name in ("x_train", "y_train", "x_test", "y_test")]
    idx = (
        struct.pack(f">4B{each.ndim}I", 0, 0, 8, each.ndim, *each.shape) + each.tobytes()
        for each in data
    )
    return dict(zip(DATASETS["mnist"]["files"], idx, strict=True))


def zipped(
    files: dict[str, str] | dict[str, bytes], compression: int = zipfile.ZIP_STORED
) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


RAW: dict[str, Callable[[], bytes]] = {
    "adult": lambda: zipped({"Index": "", **raw_adult()}),
    "nursery": lambda: zipped({"nursery.data": "\n".join(body("nursery")) + "\n\n"}),
    "bank_marketing": lambda: zipped({"bank-additional.zip": b"", "bank.zip": zipped(raw_bank())}),
    "diabetic_retinopathy": lambda: zipped(raw_retinopathy()),
    "bike_sharing_hour": lambda: zipped(
        {"Readme.txt": "", "hour.csv": shared("bike_sharing_hour").replace("\n", "\r\n")}
    ),
    "phishing_websites": lambda: zipped(raw_phishing()),
    "mooc_dropout_oulad": lambda: zipped(raw_oulad()),
}


class Mirror(ThreadingHTTPServer):
    """A server for ``files`` (path -> bytes, or a function that answers); records requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, bytes | Callable[[BaseHTTPRequestHandler], None]] = {}
        self.asked: Counter[str] = Counter()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Answer(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        self.server.asked[self.path] += 1
        content = self.server.files.get(self.path)
        if callable(content):
            content(self)
        elif content is None:
            self.send_error(404)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@functools.cache
def make_published_files() -> dict[str, bytes]:
    """Return the files of the mirror by path; made once."""
    files = {urlsplit(DATASETS[name]["url"]).path: make() for name, make in RAW.items()}
    base = urlsplit(DATASETS["mnist"]["url"]).path
    return files | {base + name: gzip.compress(raw, 1) for name, raw in raw_mnist().items()}


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    server = Mirror()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(*arguments: object, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")
    }
    command = [sys.executable, *before, "tools/data.py", *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def check_rejected(
    done: subprocess.CompletedProcess[str], code: str, exit_code: int, to: Path
) -> None:
    """Check for one error with its code, no traceback, and an unchanged directory."""
    assert done.returncode == exit_code, done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith(("DATA-", "USAGE-"))]
    assert [line.split()[0] for line in errors] == [code], done.stderr
    assert "Traceback" not in done.stderr
    assert not to.exists() or not list(to.iterdir())


def test_raw_forms_match_published_files() -> None:
    files = {**{name: text.encode() for name, text in raw_adult().items()}, **raw_mnist()}
    files["hour.csv"] = shared("bike_sharing_hour").replace("\n", "\r\n").encode()
    assert {
        name: (kind, hashlib.new(kind, files[name]).hexdigest())
        for name, (kind, _) in PUBLISHED.items()
    } == PUBLISHED
    assert len(raw_bank()["bank-full.csv"]) == BANK_FULL_BYTES


def test_datasets_are_fetched_once_and_rebuilt_exactly(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files |= make_published_files()
    done = fetch("--to", tmp_path, "--mirror", mirror.url)
    assert done.returncode == 0, done.stderr
    for name in TABLES:
        assert gzip.decompress((tmp_path / f"{name}.csv.gz").read_bytes()).decode() == shared(
            name
        ), name
    with np.load(tmp_path / "mnist.npz") as made, np.load(SHARED / "mnist.npz") as wanted:
        assert sorted(made) == sorted(wanted)
        assert all(
            made[name].dtype == wanted[name].dtype and np.array_equal(made[name], wanted[name])
            for name in wanted
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [*(f"{name}.csv.gz" for name in TABLES), "mnist.npz"]
    )
    assert "online_news_sample" in done.stdout and "left out" in done.stdout
    assert f"SHOAL_DATA={tmp_path} make test" in done.stdout

    (tmp_path / "nursery.csv.gz").write_bytes(b"\x1f\x8bdamaged")
    again = fetch("--to", tmp_path, "--mirror", mirror.url, "--json")
    assert again.returncode == 0, again.stderr
    outcome = json.loads(again.stdout)
    assert outcome["datasets"] == {**dict.fromkeys(DATASETS, "already there"), "nursery": "fetched"}
    assert outcome["errors"] == [] and set(outcome["left_out"]) == set(LIST["left_out"])
    assert mirror.asked == Counter(make_published_files().keys()) + Counter([NURSERY])


def test_fetch_reports_unreachable_mirror(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = fetch("--to", tmp_path, "--mirror", f"http://127.0.0.1:{taken.getsockname()[1]}")
    check_rejected(done, "DATA-101", 6, tmp_path)


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "ftp://127.0.0.1",
        "http://127.0.0.1:port",
        "http://[",
        "http://no-such-host.invalid",
    ],
)
def test_fetch_rejects_invalid_mirror_url(url: str, tmp_path: Path) -> None:
    done = fetch("nursery", "--to", tmp_path, "--mirror", url)
    assert done.returncode in (1, 6)
    assert "DATA-10" in done.stderr and "Traceback" not in done.stderr


def test_fetch_reports_missing_file(mirror: Mirror, tmp_path: Path) -> None:
    check_rejected(
        fetch("nursery", "--to", tmp_path, "--mirror", mirror.url), "DATA-102", 6, tmp_path
    )


def test_fetch_rejects_truncated_download(mirror: Mirror, tmp_path: Path) -> None:
    def half(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        request.wfile.write(b"PK" * 250)

    mirror.files[NURSERY] = half
    done = fetch("nursery", "--to", tmp_path, "--mirror", mirror.url)
    check_rejected(done, "DATA-103", 6, tmp_path)
    assert "broke off after 500 bytes" in done.stderr


def test_fetch_stops_endless_download(mirror: Mirror, tmp_path: Path) -> None:
    sent = 0

    def endless(request: BaseHTTPRequestHandler) -> None:
        nonlocal sent
        request.send_response(200)
        request.end_headers()
        try:
            while True:
                request.wfile.write(bytes(1 << 20))
                sent += 1 << 20
        except OSError:
            request.close_connection = True

    mirror.files[NURSERY] = endless
    check_rejected(
        fetch("nursery", "--to", tmp_path, "--mirror", mirror.url), "DATA-104", 1, tmp_path
    )
    assert sent < 80 << 20


def bomb() -> bytes:
    return zipped({"nursery.data": bytes(65 << 20)}, zipfile.ZIP_DEFLATED)


def changed() -> bytes:
    return zipped({"nursery.data": "\n".join([*body("nursery")[:-1], body("nursery")[0]])})


@pytest.mark.parametrize(
    ("archive", "code"),
    [
        (bomb, "DATA-104"),
        (lambda: b"<html>sorry</html>", "DATA-105"),
        (lambda: zipped({"nursery.names": "?"}), "DATA-105"),
        (lambda: zipped({"nursery.data": "a,b\n"}), "DATA-105"),
        (lambda: zipped({"nursery.data": b"\xff\xfe\x00"}), "DATA-105"),
        (lambda: zipped({"nursery.data": "a,b"})[:-30], "DATA-105"),
        (changed, "DATA-106"),
    ],
    ids=["bomb", "page", "no-such-file", "short-row", "not-text", "cut", "changed"],
)
def test_fetch_rejects_wrong_archive(
    mirror: Mirror, tmp_path: Path, archive: Callable[[], bytes], code: str
) -> None:
    mirror.files[NURSERY] = archive()
    check_rejected(fetch("nursery", "--to", tmp_path, "--mirror", mirror.url), code, 1, tmp_path)


def test_fetch_continues_after_one_failure(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files[NURSERY] = RAW["nursery"]()
    done = fetch("bike_sharing_hour", "nursery", "--to", tmp_path, "--mirror", mirror.url, "--json")
    outcome = json.loads(done.stdout)
    assert done.returncode == 6
    assert outcome["datasets"] == {"bike_sharing_hour": "DATA-102", "nursery": "fetched"}
    assert [error["code"] for error in outcome["errors"]] == ["DATA-102"]
    assert [path.name for path in tmp_path.iterdir()] == ["nursery.csv.gz"]


def test_fetch_keeps_old_file_if_disk_is_full(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files[NURSERY] = RAW["nursery"]()
    (tmp_path / "nursery.csv.gz").write_bytes(b"older")
    # A limit on the size of files stands in for the end of the disk: the write fails half-way, in
    # the kernel.
    limit = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); "
    limit += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    done = fetch("nursery", "--to", tmp_path, "--mirror", mirror.url, before=("-c", limit))
    assert done.returncode == 1
    assert done.stderr.count("DATA-107") == 1 and "Traceback" not in done.stderr
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [
        ("nursery.csv.gz", b"older")
    ]


def test_fetch_reports_unusable_directory(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files[NURSERY] = RAW["nursery"]()
    (tmp_path / "file").write_text("")
    done = fetch("nursery", "--to", tmp_path / "file", "--mirror", mirror.url)
    check_rejected(done, "DATA-107", 1, tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "reason"), [("adlut", "datasets.toml"), ("online_news_sample", "random part")]
)
def test_fetch_explains_dataset_without_download(name: str, reason: str, tmp_path: Path) -> None:
    done = fetch(name, "--to", tmp_path, "--json")
    error = json.loads(done.stdout)["error"]
    assert done.returncode == 2
    assert (
        error["code"] == "USAGE-001"
        and name in error["what"]
        and reason in error["why"]
        and "nursery" in error["fix"]
    )
    assert not list(tmp_path.iterdir())
