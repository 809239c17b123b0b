"""Studies in which processes are killed: all protocols and variants, and several stores."""

from __future__ import annotations

from dataclasses import dataclass

TEXT = """
spec = 1
title = "Wind"
purpose = "When do we play?"
contact = "a@example.org"
protocol = "{protocol}"
{top}
[label]
name = "play"
values = ["no", "yes"]

[[feature]]
name = "wind"
values = ["weak", "strong"]
missing = false

[[feature]]
name = "heat"
range = [0, 40]
{heat}missing = false

[privacy]
epsilon = 2.0
{privacy}
[participation]
minimum = {n}
size = {size}
{tables}
"""


def study_text(
    protocol: str,
    n: int,
    *,
    top: str = "",
    heat: str = "bins = [20]\n",
    privacy: str = "",
    tables: str = "",
) -> str:
    """Return a study file with two features for n participants.

    A study of DDML expects one participant more, so that it ends by the clock and not by the
    number of merged updates.
    """
    return TEXT.format(
        protocol=protocol,
        n=n,
        size=n + (protocol == "ddml"),
        top=top,
        heat=heat,
        privacy=privacy,
        tables=tables,
    )


@dataclass(frozen=True)
class Case:
    """A study, its participants, its store, and the processes that are killed.

    Parameters
    ----------
    text, n
        The study file and the number of participants.
    n_messages
        Messages or updates of all participants together. Kills do not change it, since none counts
        twice. With a committee it is approximate: its members send what they have at each turn.
    apart
        True: each participant is a process of ``shoal join``. False: one fleet.
    store, models
        Kinds: ``sqlite`` or ``postgres``; ``redis``, or None for the store.
    at_once, n_workers
        Concurrent participants of a fleet, 0 for all; processes that answer requests.
    kills
        Kills in the short run of the matrix.
    is_joint
        A committee computes. No member is killed: a joint computation is in memory and cannot be
        resumed.
    patience, rows
        Seconds that a phase waits for answers, and rows of the table.
    has_tokens
        Anonymous packets are admitted by tokens; otherwise by tickets.
    """

    text: str
    n: int
    n_messages: int
    apart: bool = False
    store: str = "sqlite"
    models: str | None = None
    at_once: int = 0
    n_workers: int = 1
    kills: int = 4
    is_joint: bool = False
    patience: int = 3600
    rows: int = 60
    has_tokens: bool = False

    @property
    def has_roster(self) -> bool:
        return 'protocol = "sdq"' in self.text or "secure-sum" in self.text

    @property
    def servers(self) -> tuple[str, ...]:
        """Database servers of the case."""
        return ("postgres",) * (self.store == "postgres") + ("redis",) * (self.models == "redis")

    @property
    def n_steps(self) -> int:
        """Enrolments and messages of the whole study."""
        return self.n + self.n_messages

    @property
    def victims(self) -> tuple[str, ...]:
        """Kinds of processes that are killed, in turn."""
        people = () if self.is_joint else ("participant",)
        return ("coordinator", *people, *("worker",) * (self.n_workers > 1), *self.servers)


def _devices(admission: str) -> str:
    return study_text(
        "ddml",
        20,
        privacy="n_updates = 4\n",
        tables=f'[ddml]\nn_instances = 4\nadmission = "{admission}"\n',
    )


def _databases(choice: str) -> str:
    return study_text(
        "sdq",
        3,
        top='trust = "secure-sum"\n',
        tables=f'[sdq]\nn_databases = 3\nmax_colluders = 0\nchoice = "{choice}"\n',
    )


_PEOPLE = study_text("anonml", 30, heat="")
_TREES = study_text("pfds", 3, top='variant = "paper"\n', heat="", tables="[pfds]\nn_holders = 3\n")
_SUMS = study_text("pfds", 3, top='trust = "secure-sum"\n', tables="[pfds]\nn_holders = 3\n")

COMMITTEE = Case(_databases("mpc"), 3, 102, apart=True, store="postgres", is_joint=True, kills=3)

MATRIX = {
    "anonml": Case(_PEOPLE, 30, 30, kills=4),
    "anonml, workers and postgresql": Case(_PEOPLE, 30, 30, store="postgres", n_workers=2, kills=4),
    "ddml by tokens": Case(
        _devices("token"), 20, 80, at_once=5, rows=200, kills=4, has_tokens=True
    ),
    "ddml by signatures, workers and redis": Case(
        _devices("signed"), 20, 80, at_once=5, rows=200, models="redis", n_workers=2, kills=4
    ),
    "sdq by sums": Case(_databases("sums"), 3, 15, apart=True, kills=4),
    "sdq by joint choices": COMMITTEE,
    "pfds, trees": Case(_TREES, 3, 12, apart=True, kills=4),
    "pfds, sums": Case(_SUMS, 3, 30, store="postgres", kills=4),
}

DEVICE = Case(
    study_text(
        "ddml",
        1,
        privacy="n_updates = 12\n",
        tables='[ddml]\nn_instances = 1\nadmission = "token"\n',
    ),
    1,
    12,
    apart=True,
    rows=20,
)
"""One device that sends all updates of the study."""
