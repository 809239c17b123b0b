"""Model instances in Redis, for several processes on several machines.

A merge is one Lua script, which Redis runs with nothing in between: it looks the update's name up, and writes. A replacement is sent at
once. A blend is optimistic: the instance is read with its version, blended here, and written if the version is still the same; where
another process was faster, it is tried again, and that process has made progress. Draws never wait for either.

What is durable when is Redis' own setting. With ``appendonly yes`` and ``appendfsync always`` a merge that was answered is on the disk.
With ``everysec`` those of the last two seconds may be lost when Redis dies, without append-only file all since the last snapshot: name,
count and weights together, and nothing is ever half in. A connection that is lost before the answer is made anew and the script run
again: the name is known by then if it was merged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

import numpy as np

from shoal.coordinator.models.base import (
    MEAN,
    WEIGHT,
    Average,
    Body,
    Drawn,
    Merged,
    ModelStore,
    Scrubbed,
    after,
    check_shape,
    stacked,
    unknown,
)
from shoal.errors import StoreError, UsageError
from shoal.protocols.ddml.merging import Weights

_SECONDS = 10.0
_PAUSE_SECONDS = 0.01
_READ_BYTES = 1 << 18
_N_FOLDS = np.dtype("<i8")
_REASONS = {
    "AuthenticationError": "this user and this password do not belong together, or it wants a password",
    "ConnectionError": "no server answers there",
    "NoPermissionError": "this user may not do what is needed",
    "OutOfMemoryError": "it has no memory left",
    "ReadOnlyError": "it can only be read, as a replica",
    "TimeoutError": "it does not answer in time, or one of the two sides speaks TLS",
    "TypeError": "its address has an option that does not exist",
    "ValueError": "its address cannot be read",
    "no such number": "it has no database of this number",
}


class RedisModels(ModelStore):
    """Instances in a Redis database, each a key of its own.

    Parameters
    ----------
    url
        ``redis://[user:password@]host:port/db``, ``rediss://..`` for TLS, or ``unix://path``.

    Notes
    -----
    Threads may share it. A study's keys have its digest in braces, so that a cluster keeps them together.

    What is on the disk is Redis' own: a snapshot has the instances of its moment until the next one is taken, and the append-only file
    every version since it was last rewritten, and so the updates themselves. `scrub` has it rewritten, into a new file; what the disk
    keeps of the old one is beyond Redis. Closing the store rewrites nothing. Run Redis without either where updates need not survive.

    Copies of a model in this process: a draw makes three (out of the socket, into the parser, into bytes), a replacement two (into the
    command, into the socket), and a blend reads, makes one after its arithmetic, and writes: six.
    """

    def __init__(self, url: str) -> None:
        try:
            import redis
            from redis.backoff import ExponentialWithJitterBackoff
            from redis.retry import Retry
        except ModuleNotFoundError:
            raise UsageError("USAGE-002", "Redis needs a library that is not installed.", fix="pip install 'shoal[redis]'") from None
        self._fault: type[Exception] = redis.RedisError
        self._refusal: type[Exception] = redis.ResponseError
        _check_number(url)
        with self._in_sentences(TypeError):
            retry = Retry(ExponentialWithJitterBackoff(cap=1.0, base=0.01), retries=5)
            self._redis = redis.Redis.from_url(
                url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS, socket_read_size=_READ_BYTES, retry=retry
            )
            self._redis.ping()
        self._scripts = {name: self._redis.register_script(_script(name)) for name in ("create", "merge", "average", "forget")}

    def close(self) -> None:
        self._redis.close()

    def shape(self, study: str) -> tuple[int, int] | None:
        with self._in_sentences():
            k, p = self._ask("hmget", _meta(study), "k", "p")
        return None if k is None else (int(k), int(p))

    def create(self, study: str, instances: Weights) -> None:
        shape = (len(instances), instances.shape[1])
        keys = [_meta(study), *(_slot(study, slot) for slot in range(len(instances)))]
        self._run("create", keys, [shape[1], *(row.astype(WEIGHT).tobytes() for row in instances)])
        check_shape(study, self.shape(study) or (0, 0), shape)

    def draw(self, study: str, slot: int) -> Drawn:
        n_merged, weights = self._read(study, "n_merged", slot)
        return Drawn(int(n_merged), weights)

    def merge(self, study: str, slot: int, id: bytes, epoch: int, update: Body, part: float) -> Merged:  # noqa: A002
        keys = [_meta(study), _slot(study, slot), _names(study, epoch)]
        while True:
            # The version is read before the instance: what is written between the two is found out.
            version, instance = (b"", b"") if part == 1 else self._read(study, f"version:{slot}", slot)
            outcome, n_merged = self._run("merge", keys, [slot, id, epoch, bytes(after(instance, update, part)), version])
            if outcome == b"unknown":
                raise unknown(study)
            if outcome != b"changed":
                return Merged(cast(Literal["merged", "repeated", "stale"], outcome.decode()), n_merged)

    def knows(self, study: str, id: bytes, epoch: int) -> bool:  # noqa: A002
        with self._in_sentences():
            return bool(self._ask("sismember", _names(study, epoch), id))

    def _read(self, study: str, field: str, slot: int) -> tuple[bytes, bytes]:
        """A figure of the study and then an instance, in one round trip."""
        with self._in_sentences(), self._redis.pipeline(transaction=False) as asked:
            asked.hget(_meta(study), field)
            asked.get(_slot(study, slot))
            figure, instance = asked.execute()
        if figure is None or instance is None:
            raise unknown(study)
        return figure, instance

    def all_instances(self, study: str) -> Weights:
        shape = self.shape(study)
        if shape is None:
            raise unknown(study)
        with self._in_sentences():
            instances = self._ask("mget", [_slot(study, slot) for slot in range(shape[0])])
        if None in instances:
            raise unknown(study)
        return stacked(instances)

    def n_merged(self, study: str) -> int:
        with self._in_sentences():
            found = self._ask("hget", _meta(study), "n_merged")
        if found is None:
            raise unknown(study)
        return int(found)

    def average(self, study: str) -> Average | None:
        with self._in_sentences():
            found = self._ask("get", f"{_meta(study)}:average")
        if found is None:
            return None
        return Average(int(np.frombuffer(found, _N_FOLDS, 1)[0]), np.frombuffer(found, MEAN, offset=_N_FOLDS.itemsize))

    def keep_average(self, study: str, average: Average) -> bool:
        key, head = f"{_meta(study)}:average", [np.array(n, _N_FOLDS).tobytes() for n in (average.n_folds - 1, average.n_folds)]
        weights = average.weights.astype(MEAN, copy=False).tobytes()
        return bool(self._run("average", [key], [head[0] if average.n_folds > 1 else b"", head[1] + weights]))

    def refuse(self, study: str, reason: str) -> None:
        with self._in_sentences():
            self._ask("hincrby", f"{_meta(study)}:refusals", reason, 1)

    def refusals(self, study: str) -> Mapping[str, int]:
        with self._in_sentences():
            return {reason.decode(): int(n) for reason, n in self._ask("hgetall", f"{_meta(study)}:refusals").items()}

    def forget(self, study: str, epoch: int) -> None:
        self._run("forget", [_meta(study)], [epoch])

    def scrub(self, seconds: float = 0.0) -> Scrubbed:
        """Have the append-only file rewritten, where there is one. Redis does it beside its work."""
        end = time.monotonic() + seconds
        with self._in_sentences():
            if not self._ask("info", "persistence").get("aof_enabled"):
                return "done"
            # A rewrite that began before this call may lack what was merged since: it is waited for, and then comes another.
            while self._rewritten(end) is not None:
                if self._begin_rewrite():
                    break
            else:
                return "blocked"
            is_well = self._rewritten(end)
        return "begun" if is_well is None else "done" if is_well else "blocked"

    def _rewritten(self, end: float) -> bool | None:
        """Whether the last rewrite went well; None where it is still going on at the end."""
        while True:
            state = self._ask("info", "persistence")
            if not (state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"]):
                return bool(state["aof_last_bgrewrite_status"] == "ok")
            if time.monotonic() >= end:
                return None
            time.sleep(_PAUSE_SECONDS)

    def _begin_rewrite(self) -> bool:
        """False where another process was faster."""
        try:
            self._ask("bgrewriteaof")
        except self._refusal as error:
            if "in progress" not in str(error):
                raise
            return False
        return True

    def _ask(self, command: str, *arguments: Any) -> Any:
        """The answer to a command, without the library's types, which allow for answers that come later."""
        return getattr(self._redis, command)(*arguments)

    def _run(self, name: str, keys: list[str], values: list[Any]) -> Any:
        with self._in_sentences():
            return self._scripts[name](keys, values)

    @contextmanager
    def _in_sentences(self, *also: type[Exception]) -> Iterator[None]:
        faults: tuple[type[Exception], ...] = (self._fault, ValueError, OSError, *also)
        try:
            yield
        except faults as error:
            # The library's own words may quote the address, which may hold a password.
            kind = "no such number" if "DB index" in str(error) else type(error).__name__
            raise StoreError(
                "STORE-001",
                f"Redis cannot be used: {_REASONS.get(kind, kind)}.",
                why=None if kind in _REASONS else "It refuses what it is asked, or has no memory or disk left.",
                fix="See to it, and to its address. Updates that were not acknowledged will come again.",
            ) from None


def _check_number(url: str) -> None:
    """Refuse a database that is not a number: the library would take it for number 0."""
    scheme, _, rest = url.partition("://")
    path = rest.partition("?")[0].partition("/")[2]
    if scheme != "unix" and path and not (path.isdecimal() and path.isascii()):
        what = "What follows the host in the address of Redis is not the number of a database."
        raise UsageError("USAGE-001", what, fix="Give redis://HOST:PORT/0, or another number; redis://HOST:PORT is number 0.")


def _meta(study: str) -> str:
    return f"shoal:{{{study}}}"


def _slot(study: str, slot: int) -> str:
    return f"{_meta(study)}:slot:{slot}"


def _names(study: str, epoch: int) -> str:
    return f"{_meta(study)}:names:{epoch}"


@cache
def _script(name: str) -> str:
    return files("shoal.coordinator.models").joinpath("scripts", f"{name}.lua").read_text("utf-8")
