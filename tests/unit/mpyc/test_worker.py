"""A worker checks the messages of parties, and cannot be made to run them."""

from __future__ import annotations

import asyncio
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.mpyc import worker
from shoal.mpyc.runner import make_environment
from shoal.mpyc.worker import (
    FrameBuffer,
    FrameKind,
    PartyConnection,
    UnusableMessageError,
    WorkerTask,
    encode_frame,
)
from shoal.protocols.base import Broken, Compute, Computed, Feed
from shoal.protocols.mpc.shares import MAX_PAIR_BYTES
from tests.support.mpc import TestChildren, Trusting, computing, finish


def message(step: int, payload: bytes) -> bytes:
    return struct.pack("<qI", step, len(payload)) + payload


def test_connection_delivers_message_before_or_after_request() -> None:
    async def meet() -> None:
        line = PartyConnection(1)
        promise = line.receive(-5)
        line.accept(message(7, b"seven") + message(-5, b"five") + message(8, b""))
        assert await promise == b"five"
        assert (line.receive(7), line.receive(8)) == (b"seven", b"")

    asyncio.run(meet())


def test_connection_reads_sent_messages() -> None:
    here, there = PartyConnection(1), PartyConnection(0)
    here.send(3, b"three")
    here.send(4, b"")
    there.accept(bytes(here.out))
    assert (there.receive(3), there.receive(4)) == (b"three", b"")


def test_connection_rejects_malformed_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (
        b"\x00",
        message(1, b"abc")[:-1],
        message(1, b"abc") + b"\x00" * 11,
        message(1, b"a") + message(1, b"b"),
    ):
        with pytest.raises(UnusableMessageError) as caught:
            PartyConnection(6).accept(wrong)
        assert caught.value.party == 6
    monkeypatch.setattr(worker, "MAX_HELD", 2)
    with pytest.raises(UnusableMessageError):
        PartyConnection(6).accept(b"".join(message(step, b"") for step in range(5)))


def test_connection_limits_bytes_of_party() -> None:
    line, size = PartyConnection(6), 1 << 22
    line.accept(message(1, bytes(size)))
    assert line.n_held >= size
    assert len(line.receive(1)) == size and line.n_held == 0, "a message that is read is not held"
    with pytest.raises(UnusableMessageError):
        for step in range(2, 1_000):
            line.accept(message(step, bytes(size)))
    assert step * size <= 2 * MAX_PAIR_BYTES


def test_worker_limits_bytes_that_wait_and_blames_largest_party() -> None:
    """Run the task of a worker on pipes, with a limit that two parties exceed together."""
    begin = WorkerTask("argmax", 0, 3, (1, 2)).to_bytes()
    feeds = [
        encode_frame(FrameKind.FEED, 1, message(1, bytes(700))),
        encode_frame(FrameKind.FEED, 2, message(2, bytes(1_500))),
    ]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED],
        input=begin + b"".join(feeds),
        capture_output=True,
        check=True,
        env=make_environment(),
    )
    frames = list(FrameBuffer().extract(done.stdout))
    assert frames[-1][:2] == (FrameKind.REFUSED, 2)


LIMITED = """
from shoal.mpyc import worker
worker.MAX_WAITING_BYTES = 2_000
worker.main()
"""


class Evil:
    """An object that makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("forbids", [True, False])
def test_worker_rejects_malicious_pickle_that_mpyc_would_run(tmp_path: Path, forbids: bool) -> None:
    """Party 1 sends it in place of an object.

    A worker that may unpickle shows that it would have run.
    """
    path = tmp_path / "made"
    with Trusting() as theirs, (TestChildren if forbids else Trusting)() as mine:
        theirs.begin("peer-1", Compute("joint/1", "transfer", 1, 3))
        mine.begin("peer-0", Compute("joint/1", "transfer", 0, 3))
        (_, emission), *_ = theirs.collect()
        step, _ = struct.unpack_from("<qI", emission.payload)
        mine.feed("peer-0", Feed("joint/1", 1, message(step, pickle.dumps(Evil(path)))))
        ((_, end),) = mine.collect()
    assert path.exists() != forbids
    assert isinstance(end, Broken) == forbids


def test_trusting_worker_accepts_pickled_object() -> None:
    with computing("transfer", [(), (), ()], Trusting) as children:
        assert finish(children)["peer-0"] == 1


ATTEMPTS = """
import pickle, _pickle, os, sys
from pickle import loads as kept
from _pickle import loads as kept_too
from shoal.mpyc.worker import restrict_process
bad = bytes.fromhex(sys.argv[1])
restrict_process()
import io, socket, subprocess
import mpyc.runtime
attempts = [
    lambda: kept(bad),
    lambda: kept_too(bad),
    lambda: pickle.loads(bad),
    lambda: pickle._loads(bad),
    lambda: pickle.load(io.BytesIO(bad)),
    lambda: pickle.Unpickler(io.BytesIO(bad)),
    lambda: pickle._Unpickler(io.BytesIO(bad)),
    lambda: _pickle.loads(bad),
    lambda: _pickle.Unpickler(io.BytesIO(bad)),
    lambda: subprocess.run(["true"]),
    lambda: os.system("true"),
    lambda: os.fork(),
    lambda: socket.socket().connect(("127.0.0.1", 9)),
    lambda: socket.socket().bind(("127.0.0.1", 0)),
]
for attempt in attempts:
    try:
        attempt()
    except RuntimeError as error:
        assert "forbidden" in str(error)
    else:
        raise SystemExit("it went through")
assert mpyc.runtime.pickle is None
print(len(attempts))
"""


def test_restrict_process_removes_pickle_and_outside_access(tmp_path: Path) -> None:
    path = tmp_path / "made"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ATTEMPTS, pickle.dumps(Evil(path)).hex()],
        capture_output=True,
        text=True,
    )
    assert (done.stdout.splitlines()[-1:], done.returncode) == (["14"], 0), done.stderr
    assert not path.exists()


def test_worker_output_ignores_printed_text() -> None:
    with computing("loud", [(), (), ()]) as children:
        assert finish(children) == {f"peer-{i}": 0 for i in range(3)}


def test_worker_ends_at_end_of_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shoal.mpyc.worker"], stdin=subprocess.DEVNULL, capture_output=True
    )
    assert (done.returncode, done.stdout) == (0, b"")


def test_worker_reports_unknown_program_without_inputs() -> None:
    with computing("nothing", [(12345678,)]) as children:
        ((_, broken),) = children.collect()
    assert not isinstance(broken, Computed)
    assert "failed with KeyError" in broken.error.what
