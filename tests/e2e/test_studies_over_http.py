"""Every protocol between real processes over TLS: one ``shoal serve``, participants from ``shoal join`` and fleets alone, both stores.

Tables are read from every kind of file. A study comes to its model, and counts in it all that was sent. Each ledger has spent what the
label says, no more and no less, and can be checked; what a holder takes home passes its check, and a reader hears what was published.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from certificates import Certificates
from live import write_csv
from participants import document_of, folder, table_of
from served import Coordinator, Participant, Process, all_told, fleet, roster_of, toml_of
from servers import Postgres, Redis
from shoal.coordinator.store.opening import open_store
from shoal.privacy.rounding import grains_up
from shoal.study.anonymity import has_tokens
from shoal.study.load import load
from shoal.study.manifest import Manifest
from shoal.study.plan import make_plan
from shoal.study.rosters import load_roster

__all__ = ["folder"]

N_UPDATES = 2


@dataclass(frozen=True)
class Case:
    """A study and who takes part: participants of ``shoal join`` and those of a fleet, each with so many rows."""

    protocol: str
    n: int
    rows: int = 40
    n_fleet: int = 0
    has_roster: bool = False
    document: dict[str, Any] = field(default_factory=dict)


def ddml(admission: str, n_fleet: int = 18) -> Case:
    """One honest update of 200 is taken for spam: a study that expects fewer than are sent ends all the same."""
    n_expected = n_fleet - n_fleet // 6
    document = {
        "participation": {"minimum": n_expected, "size": n_expected},
        "privacy": {"epsilon": 4.0, "n_updates": N_UPDATES},
        "ddml": {"n_instances": 2, "admission": admission},
    }
    return Case("ddml", 3, 20, n_fleet, document=document)


def anonml(n_fleet: int) -> Case:
    return Case("anonml", 3, 1, n_fleet, document={"participation": {"minimum": n_fleet, "size": n_fleet + 3}})


def sdq(n: int, **settings: Any) -> Case:
    return Case("sdq", n, has_roster=True, document={"sdq": {"n_databases": n, **settings}})


def pfds(**document: Any) -> Case:
    return Case("pfds", 3, has_roster=document.get("trust") == "secure-sum", document={"pfds": {"n_holders": 3}, **document})


CASES = {
    "anonml": anonml(30),
    "anonml, hundreds": anonml(200),
    "ddml, signed": ddml("signed"),
    "ddml, token": ddml("token"),
    "ddml, open": ddml("open"),
    "ddml, hundreds": ddml("token", 300),
    "sdq, ten databases": sdq(10, depth=2, choice="mpc"),
    "sdq, sums": sdq(3, max_colluders=1, depth=1, choice="sums"),
    "pfds, local": pfds(),
    "pfds, sums": pfds(trust="secure-sum"),
    "pfds, paper": pfds(variant="paper"),
}


def cases(protocols: str, *always: str) -> list[Any]:
    """Those of some protocols; the others than these in `make soak` alone."""
    found = [name for name, case in CASES.items() if case.protocol in protocols]
    return [pytest.param(name, marks=() if name in always else pytest.mark.soak) for name in found]


ON_SQLITE = ("sdq, ten databases", "pfds, sums")
ON_POSTGRESQL = ("anonml", "ddml, token")


@pytest.mark.parametrize("name", cases("anonml ddml sdq pfds", *ON_SQLITE))
def test_on_sqlite(folder: Path, certificates: Certificates, stack: ExitStack, name: str) -> None:
    run(CASES[name], folder, certificates, stack, "sqlite:coordinator.db")


@pytest.mark.parametrize("name", cases("anonml ddml sdq pfds", *ON_POSTGRESQL))
def test_on_postgresql(folder: Path, certificates: Certificates, stack: ExitStack, postgres_server: Postgres, name: str) -> None:
    run(CASES[name], folder, certificates, stack, postgres_server.new_database(), "--workers", "2")


@pytest.mark.parametrize("name", cases("ddml", "ddml, signed"))
def test_with_instances_in_redis(folder: Path, certificates: Certificates, stack: ExitStack, redis_server: Redis, name: str) -> None:
    run(CASES[name], folder, certificates, stack, "sqlite:coordinator.db", "--models", redis_server.url)


def write_rows(path: Path, n: int, seed: int) -> str:
    """Rows in a file of one kind or another, and how the command line names them."""
    match seed % 3:
        case 0:
            return str(write_csv(path.with_suffix(".csv"), n, seed))
        case 1:
            columns = {name: column.tolist() for name, column in table_of(n, seed).items()}
            parquet.write_table(pa.table(columns), path.with_suffix(".parquet"))
            return str(path.with_suffix(".parquet"))
        case _:
            with closing(sqlite3.connect(path.with_suffix(".sqlite"))) as db, db:
                db.execute("CREATE TABLE days (wind TEXT, heat REAL, play TEXT)")
                db.executemany("INSERT INTO days VALUES (:wind, :heat, :play)", _rows_of(n, seed))
            return f"{path.with_suffix('.sqlite')}#days"


def _rows_of(n: int, seed: int) -> list[dict[str, Any]]:
    table = {name: column.tolist() for name, column in table_of(n, seed).items()}
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def run(case: Case, home: Path, tls: Certificates, stack: ExitStack, store: str, *where: str) -> None:
    """Serve a study, have everyone take part at once, and hold what they come to against what was promised."""
    people = [Participant(home, f"site-{i}") for i in range(case.n)]
    data = {one.name: write_rows(home / one.name, case.rows, i) for i, one in enumerate(people)}
    (home / "study.toml").write_text(toml_of(document_of(case.protocol, case.n, **case.document)))
    roster = ("--roster", roster_of(stack, people)) if case.has_roster else ()
    # With tokens the people of AnonML would send at times of their own, drawn over the whole phase: see the tests of anonymous studies.
    tickets = ("--tickets",) if case.protocol == "anonml" else ()
    words = ("study.toml", "--port", "0", "--store", store, *roster, *tickets, *where)
    coordinator = stack.enter_context(Coordinator(home, *words, tls=tls))

    is_shared = case.protocol == "pfds"
    joins = [one.join(coordinator, *(("--out", home / one.name) if is_shared else ()), data=data[one.name]) for one in people]
    joins += [Participant(home, "reader").read(coordinator, "--out", home / "reader")] if is_shared else []
    # The people of AnonML wait for each other; a device waits for nobody, and the fleet would end the study before these have begun.
    told = all_told(stack, joins) if case.protocol == "ddml" else []
    if case.n_fleet:
        rows = write_csv(home / "rows.csv", case.rows * case.n_fleet, "fleet")
        crowd = fleet(home / "fleet", coordinator, rows, home, case.n_fleet)
        stack.callback(crowd.kill)
        people += [Participant(home, f"participant-{i:05d}") for i in range(case.n_fleet)]
        assert crowd.code() == 0, crowd.words()
    told = told or all_told(stack, joins)
    assert {one["standing"] for one in told} == {"finished"}

    model, label = coordinator.model(), coordinator.get("label").json()
    if is_shared:
        assert json.loads((home / "reader" / "model.json").read_bytes()) == model
        check_releases(home, people)
    verified = people[0].start("ledger verify").told()
    assert verified["records"] > 0 and coordinator.end() == (0, "")

    assert model["study"] == coordinator.studies[0] and model["model"]
    with open_store(store.replace("sqlite:", f"sqlite:{home}/")) as kept:
        hosted = kept.study(model["study"])
        assert hosted is not None
        manifest = Manifest.from_bytes(hosted.manifest)
        assert manifest.study == load(home / "study.toml")
        assert manifest.roster == (load_roster(home / "roster.toml") if case.has_roster else ())
        assert has_tokens(manifest) == ("token" in str(case.document.get("ddml")))
        check_price(case, manifest, label, people)
        check_counts(case, model["counts"], kept.totals(model["study"]).refused, people)


def check_price(case: Case, manifest: Manifest, label: dict[str, Any], people: list[Participant]) -> None:
    """Everyone has spent what the label says, to the last grain; a device that comes after the end may have spent less."""
    charges = make_plan(manifest.study, manifest.digest).charges
    price = sum(grains_up(event.epsilon) for event in charges)
    assert 0 <= grains_up(label["everything"]["epsilon"]) - price <= len(charges)
    spent = [one.grains(manifest.digest.hex()) for one in people]
    if case.protocol == "ddml":
        assert max(spent) <= price and spent.count(price) >= manifest.study.participation.size // N_UPDATES
    else:
        assert set(spent) == {price}


def check_counts(case: Case, counts: dict[str, Any], refused: dict[str, int], people: list[Participant]) -> None:
    """Every answer that has left a ledger is in the model or among those that were refused, once."""
    n_sent = sum(len(one.entries()) for one in people)
    match case.protocol:
        case "anonml":
            assert (sum(counts["answers"]), counts["late"]) == (n_sent, 0)
        case "ddml":
            assert counts["merged"] + sum(refused.values()) == n_sent
            assert counts["merged"] >= case.document["participation"]["size"] * N_UPDATES and set(refused) <= {
                "spam",
                "stale",
                "HOST-002",
                "AUTH-002",
            }
        case "sdq":
            assert set(counts["answering"]) == {case.n}
        case "pfds":
            assert counts["left_out"] == []
    assert case.protocol == "ddml" or refused == {}


def check_releases(home: Path, people: list[Participant]) -> None:
    """What each holder takes home passes its check."""
    checks = [Process(home / f"{one.name}-check", ["release", "check", home / one.name / "release"]) for one in people]
    assert [check.code() for check in checks] == [0] * len(people), [check.words() for check in checks]
