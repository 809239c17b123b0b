"""A child takes what parties send apart with care, and cannot be made to run it."""

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

from joint_runs import TestChildren, Trusting, computing, finish
from shoal.mpc import child
from shoal.mpc.child import Line, RefusedError
from shoal.protocols.base import Broken, Compute, Computed, Feed


def message(step: int, payload: bytes) -> bytes:
    return struct.pack("<qI", step, len(payload)) + payload


def test_messages_meet_those_who_wait_for_them_in_either_order() -> None:
    async def meet() -> None:
        line = Line(1)
        promise = line.receive(-5)
        line.take(message(7, b"seven") + message(-5, b"five") + message(8, b""))
        assert await promise == b"five"
        assert (line.receive(7), line.receive(8)) == (b"seven", b"")

    asyncio.run(meet())


def test_what_is_sent_reads_as_it_was() -> None:
    here, there = Line(1), Line(0)
    here.send(3, b"three")
    here.send(4, b"")
    there.take(bytes(here.out))
    assert (there.receive(3), there.receive(4)) == (b"three", b"")


def test_what_cannot_be_a_message_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (b"\x00", message(1, b"abc")[:-1], message(1, b"abc") + b"\x00" * 11, message(1, b"a") + message(1, b"b")):
        with pytest.raises(RefusedError) as caught:
            Line(6).take(wrong)
        assert caught.value.party == 6
    monkeypatch.setattr(child, "MAX_HELD", 2)
    with pytest.raises(RefusedError):
        Line(6).take(b"".join(message(step, b"") for step in range(5)))


class Evil:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("forbids", [True, False])
def test_a_malicious_pickle_is_refused_where_mpyc_would_run_it(tmp_path: Path, forbids: bool) -> None:
    """Party 1 sends it in the place of an object; a child that is allowed to unpickle shows that it would have run."""
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


def test_the_same_object_passes_where_pickle_is_allowed() -> None:
    with computing("transfer", [(), (), ()], Trusting) as children:
        assert finish(children)["peer-0"] == 1


ATTEMPTS = """
import pickle, _pickle, os, sys
from pickle import loads as kept
from _pickle import loads as kept_too
from shoal.mpc.child import forbid
bad = bytes.fromhex(sys.argv[1])
forbid()
import io, socket, subprocess
import mpyc.runtime
attempts = [
    lambda: kept(bad), lambda: kept_too(bad), lambda: pickle.loads(bad), lambda: pickle._loads(bad), lambda: pickle.load(io.BytesIO(bad)),
    lambda: pickle.Unpickler(io.BytesIO(bad)), lambda: pickle._Unpickler(io.BytesIO(bad)), lambda: _pickle.loads(bad),
    lambda: _pickle.Unpickler(io.BytesIO(bad)), lambda: subprocess.run(["true"]), lambda: os.system("true"), lambda: os.fork(),
    lambda: socket.socket().connect(("127.0.0.1", 9)), lambda: socket.socket().bind(("127.0.0.1", 0)),
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


def test_pickle_and_the_outside_are_gone_for_good(tmp_path: Path) -> None:
    path = tmp_path / "made"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ATTEMPTS, pickle.dumps(Evil(path)).hex()], capture_output=True, text=True)
    assert (done.stdout.splitlines()[-1:], done.returncode) == (["14"], 0), done.stderr
    assert not path.exists()


def test_what_is_printed_is_not_taken_for_a_frame_and_nothing_else_can_be_read() -> None:
    with computing("loud", [(), (), ()]) as children:
        assert finish(children) == {f"peer-{i}": 0 for i in range(3)}


def test_a_child_ends_with_its_input() -> None:
    done = subprocess.run([sys.executable, "-m", "shoal.mpc.child"], stdin=subprocess.DEVNULL, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_program_that_nobody_knows_fails_without_a_word_of_what_it_was_given() -> None:
    with computing("nothing", [(12345678,)]) as children:
        ((_, broken),) = children.collect()
    assert not isinstance(broken, Computed)
    assert "failed with KeyError" in broken.error.what
