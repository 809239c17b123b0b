"""Model instances in Redis, for several processes on several machines.

A merge is one Lua script, which Redis runs atomically: it looks up the update's name and writes. A
replacement needs one call. A blend is optimistic: the instance is read with its version, blended
here, and written if the version has not changed; if another process was faster, the blend is
repeated, and that process has made progress. Draws never wait for either.

Durability depends on the settings of Redis. With ``appendonly yes`` and ``appendfsync always`` an
acknowledged merge is on the disk. With ``everysec`` the merges of the last two seconds may be lost
when Redis dies; without an append-only file, all merges since the last snapshot. Name, count and
weights of an update are lost together; no update is ever merged in part. If a connection is lost
before the response, the script runs again on a new one, and finds the name if the update was
merged.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

import numpy as np

from shoal.coordinator.ddml.instances.base import (
    MEAN,
    WEIGHT,
    Average,
    Body,
    DrawnInstance,
    InstanceStore,
    MergeOutcome,
    ScrubOutcome,
    apply_update,
    check_shape,
    missing_instances_error,
    stack_instances,
)
from shoal.errors import StoreError, UsageError, require_extra
from shoal.protocols.ddml.merging import Weights

_SECONDS = 10.0
_PAUSE_SECONDS = 0.01
_READ_BYTES = 1 << 18
_N_FOLDS = np.dtype("<i8")
_REASONS = {
    "AuthenticationError": "user or password is wrong, or a password is needed",
    "ConnectionError": "no server answers at this address",
    "NoPermissionError": "the user does not have the necessary permissions",
    "OutOfMemoryError": "it has no memory left",
    "ReadOnlyError": "it is a read-only replica",
    "TimeoutError": "it does not answer in time, or only one of the two sides uses TLS",
    "TypeError": "its address has an option that does not exist",
    "ValueError": "its address cannot be read",
    "no such number": "it has no database of this number",
}


class RedisInstanceStore(InstanceStore):
    """Instances in a Redis database, one key for each.

    Parameters
    ----------
    url
        ``redis://[user:password@]host:port/db``, ``rediss://..`` for TLS, or ``unix://path``.

    Notes
    -----
    Threads may share it. A study's keys have its digest in braces, so that a cluster stores them on
    one node.

    Redis writes to the disk: a snapshot has the instances of its moment until the next snapshot,
    and the append-only file has every version since it was last rewritten, and so the updates
    themselves. `scrub` has Redis rewrite it into a new file; Redis cannot erase the old one from
    the disk. Closing the store rewrites nothing. Run Redis without both if updates need not survive
    its end.

    Copies of a model in this process: a draw makes three (from the socket, into the parser, into
    bytes), a replacement two (into the command, into the socket), and a blend reads, makes one
    after its arithmetic, and writes: six.
    """

    def __init__(self, url: str) -> None:
        require_extra("redis", "redis", purpose="Redis")
        import redis
        from redis.backoff import ExponentialWithJitterBackoff
        from redis.retry import Retry

        self._redis_error: type[Exception] = redis.RedisError
        self._response_error: type[Exception] = redis.ResponseError
        _check_database_number(url)
        with self._translate_errors(TypeError):
            retry = Retry(ExponentialWithJitterBackoff(cap=1.0, base=0.01), retries=5)
            self._redis = redis.Redis.from_url(
                url,
                socket_timeout=_SECONDS,
                socket_connect_timeout=_SECONDS,
                socket_read_size=_READ_BYTES,
                retry=retry,
            )
            self._redis.ping()
        self._scripts = {
            name: self._redis.register_script(_read_script(name))
            for name in ("create", "merge", "average", "forget")
        }

    def close(self) -> None:
        self._redis.close()

    def find_shape(self, study: str) -> tuple[int, int] | None:
        with self._translate_errors():
            k, p = self._execute("hmget", _meta_key(study), "k", "p")
        return None if k is None else (int(k), int(p))

    def create(self, study: str, instances: Weights) -> None:
        shape = (len(instances), instances.shape[1])
        keys = [_meta_key(study), *(_slot_key(study, slot) for slot in range(len(instances)))]
        self._run_script(
            "create", keys, [shape[1], *(row.astype(WEIGHT).tobytes() for row in instances)]
        )
        check_shape(study, self.find_shape(study) or (0, 0), shape)

    def draw(self, study: str, slot: int) -> DrawnInstance:
        n_merged, weights = self._read_instance(study, "n_merged", slot)
        return DrawnInstance(int(n_merged), weights)

    def merge(
        self, study: str, slot: int, update_id: bytes, epoch: int, update: Body, blend_factor: float
    ) -> MergeOutcome:
        keys = [_meta_key(study), _slot_key(study, slot), _names_key(study, epoch)]
        while True:
            # The version is read before the instance, so a write between the two is detected.
            version, instance = (
                (b"", b"")
                if blend_factor == 1
                else self._read_instance(study, f"version:{slot}", slot)
            )
            outcome, n_merged = self._run_script(
                "merge",
                keys,
                [
                    slot,
                    update_id,
                    epoch,
                    bytes(apply_update(instance, update, blend_factor)),
                    version,
                ],
            )
            if outcome == b"unknown":
                raise missing_instances_error(study)
            if outcome != b"changed":
                return MergeOutcome(
                    cast(Literal["merged", "repeated", "stale"], outcome.decode()), n_merged
                )

    def has_update(self, study: str, update_id: bytes, epoch: int) -> bool:
        with self._translate_errors():
            return bool(self._execute("sismember", _names_key(study, epoch), update_id))

    def _read_instance(self, study: str, field: str, slot: int) -> tuple[bytes, bytes]:
        """Return a field of the study and an instance read after it, in one round trip."""
        with self._translate_errors(), self._redis.pipeline(transaction=False) as pipeline:
            pipeline.hget(_meta_key(study), field)
            pipeline.get(_slot_key(study, slot))
            value, instance = pipeline.execute()
        if value is None or instance is None:
            raise missing_instances_error(study)
        return value, instance

    def load_instances(self, study: str) -> Weights:
        shape = self.find_shape(study)
        if shape is None:
            raise missing_instances_error(study)
        with self._translate_errors():
            instances = self._execute("mget", [_slot_key(study, slot) for slot in range(shape[0])])
        if None in instances:
            raise missing_instances_error(study)
        return stack_instances(instances)

    def count_merged(self, study: str) -> int:
        with self._translate_errors():
            value = self._execute("hget", _meta_key(study), "n_merged")
        if value is None:
            raise missing_instances_error(study)
        return int(value)

    def load_average(self, study: str) -> Average | None:
        with self._translate_errors():
            value = self._execute("get", f"{_meta_key(study)}:average")
        if value is None:
            return None
        return Average(
            int(np.frombuffer(value, _N_FOLDS, 1)[0]),
            np.frombuffer(value, MEAN, offset=_N_FOLDS.itemsize),
        )

    def save_average(self, study: str, average: Average) -> bool:
        key, head = (
            f"{_meta_key(study)}:average",
            [np.array(n, _N_FOLDS).tobytes() for n in (average.n_folds - 1, average.n_folds)],
        )
        weights = average.weights.astype(MEAN, copy=False).tobytes()
        return bool(
            self._run_script(
                "average", [key], [head[0] if average.n_folds > 1 else b"", head[1] + weights]
            )
        )

    def count_rejection(self, study: str, reason: str) -> None:
        with self._translate_errors():
            self._execute("hincrby", f"{_meta_key(study)}:refusals", reason, 1)

    def list_rejections(self, study: str) -> Mapping[str, int]:
        with self._translate_errors():
            return {
                reason.decode(): int(n)
                for reason, n in self._execute("hgetall", f"{_meta_key(study)}:refusals").items()
            }

    def forget(self, study: str, epoch: int) -> None:
        self._run_script("forget", [_meta_key(study)], [epoch])

    def scrub(self, seconds: float = 0.0) -> ScrubOutcome:
        """Have Redis rewrite its append-only file, if it has one, in the background."""
        end = time.monotonic() + seconds
        with self._translate_errors():
            if not self._execute("info", "persistence").get("aof_enabled"):
                return "done"
            # A rewrite that began before this call may lack later merges: wait for its end, then
            # begin another one.
            while self._wait_for_rewrite(end) is not None:
                if self._begin_rewrite():
                    break
            else:
                return "blocked"
            has_succeeded = self._wait_for_rewrite(end)
        return "begun" if has_succeeded is None else "done" if has_succeeded else "blocked"

    def _wait_for_rewrite(self, end: float) -> bool | None:
        """Return whether the last rewrite succeeded; None if it still runs at the end."""
        while True:
            state = self._execute("info", "persistence")
            if not (state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"]):
                return bool(state["aof_last_bgrewrite_status"] == "ok")
            if time.monotonic() >= end:
                return None
            time.sleep(_PAUSE_SECONDS)

    def _begin_rewrite(self) -> bool:
        """Start a rewrite; return False if another process was faster."""
        try:
            self._execute("bgrewriteaof")
        except self._response_error as error:
            if "in progress" not in str(error):
                raise
            return False
        return True

    def _execute(self, command: str, *arguments: Any) -> Any:
        """Return the response to a command, untyped: the library's types include awaitables."""
        return getattr(self._redis, command)(*arguments)

    def _run_script(self, name: str, keys: list[str], values: list[Any]) -> Any:
        with self._translate_errors():
            return self._scripts[name](keys, values)

    @contextmanager
    def _translate_errors(self, *also: type[Exception]) -> Iterator[None]:
        faults: tuple[type[Exception], ...] = (self._redis_error, ValueError, OSError, *also)
        try:
            yield
        except faults as error:
            # The library's messages may quote the address, which may contain a password.
            kind = "no such number" if "DB index" in str(error) else type(error).__name__
            raise StoreError(
                "STORE-001",
                f"Redis cannot be used: {_REASONS.get(kind, kind)}.",
                why=None
                if kind in _REASONS
                else "It rejected a command, or has no memory or disk space left.",
                fix="Check the server and its address. Clients resend updates that were not "
                "acknowledged.",
            ) from None


def _check_database_number(url: str) -> None:
    """Raise ``USAGE-001`` for a database that is not a number; the library would use number 0."""
    scheme, _, rest = url.partition("://")
    path = rest.partition("?")[0].partition("/")[2]
    if scheme != "unix" and path and not (path.isdecimal() and path.isascii()):
        what = "The path in the address of Redis is not the number of a database."
        raise UsageError(
            "USAGE-001",
            what,
            fix="Give redis://HOST:PORT/0, or another number; redis://HOST:PORT is number 0.",
        )


def _meta_key(study: str) -> str:
    return f"shoal:{{{study}}}"


def _slot_key(study: str, slot: int) -> str:
    return f"{_meta_key(study)}:slot:{slot}"


def _names_key(study: str, epoch: int) -> str:
    return f"{_meta_key(study)}:names:{epoch}"


@cache
def _read_script(name: str) -> str:
    return (
        files("shoal.coordinator.ddml.instances")
        .joinpath("scripts", f"{name}.lua")
        .read_text("utf-8")
    )
