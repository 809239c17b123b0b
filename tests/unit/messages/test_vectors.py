"""The vectors of the wire specification are current and match this implementation."""

from __future__ import annotations

import hashlib
import json
import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest

from shoal.errors import MechanismError, RemoteProtocolError
from shoal.mechanisms.calibrate import make_mechanism
from shoal.messages.codec import decode, dumps, encode, loads
from shoal.protocols.anonml.messages import MESSAGES as ANONML_MESSAGES
from shoal.protocols.ddml.messages import MESSAGES as DDML_MESSAGES
from shoal.protocols.pfds.messages import MESSAGES as PFDS_MESSAGES
from shoal.protocols.sdq.messages import MESSAGES as SDQ_MESSAGES
from shoal.study.manifest import Manifest
from tools.vectors import FILES, render_file
from tools.vectors.base import DIRECTORY, STUDY, tag_value
from tools.vectors.encoding import READ, REGISTRY


def load(name: str) -> dict[str, Any]:
    return json.loads((DIRECTORY / name).read_text())


def named(cases: list[dict[str, Any]]) -> Any:
    return pytest.mark.parametrize(
        "case", [pytest.param(case, id=case.get("name", case["hex"][:20])) for case in cases]
    )


CBOR, MESSAGES, MECHANISMS, MANIFESTS, ANONML, DDML, SDQ, PFDS = (
    load(f"{name}.json")
    for name in ("cbor", "messages", "mechanisms", "manifests", "anonml", "ddml", "sdq", "pfds")
)
PROTOCOLS = {
    "anonml": ANONML_MESSAGES,
    "ddml": DDML_MESSAGES,
    "sdq": SDQ_MESSAGES,
    "pfds": PFDS_MESSAGES,
}
# The messages of SDQ include those of secure sums and of joint computations.
REGISTRIES = {**PROTOCOLS, "sum": SDQ_MESSAGES, "joint": SDQ_MESSAGES}


@pytest.mark.parametrize("name", FILES)
def test_vector_files_equal_output_of_command(name: str) -> None:
    assert (DIRECTORY / name).read_text() == render_file(name), "run: python -m tools.vectors"


@named(CBOR["read"])
def test_plain_data_round_trips(case: dict[str, Any]) -> None:
    value = loads(bytes.fromhex(case["hex"]))
    assert tag_value(value) == case["value"]
    assert dumps(READ[case["name"]][1]).hex() == case["hex"]


@named(CBOR["refused"])
def test_malformed_bytes_are_rejected(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        loads(bytes.fromhex(case["hex"]))
    assert caught.value.code == case["code"]


@named(MESSAGES["read"])
def test_messages_round_trip(case: dict[str, Any]) -> None:
    message = decode(bytes.fromhex(case["hex"]), REGISTRY, STUDY)
    assert tag_value(message.model_dump(exclude={"study"})) == case["body"]
    assert encode(message).hex() == case["hex"]


@named(MESSAGES["refused"])
def test_malformed_messages_are_rejected(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(bytes.fromhex(case["hex"]), REGISTRY, STUDY)
    assert caught.value.code == case["code"]


@pytest.mark.parametrize("case", MECHANISMS["parameters"])
def test_event_epsilon_follows_from_integers_and_is_at_most_requested(
    case: dict[str, Any],
) -> None:
    """Follow the formulas of the specification, from the file alone."""
    word, m = int(MECHANISMS["denominator"]), case["cardinality"]
    keep = Fraction(int(case["keep_numerator"]), word)
    if case["mechanism"] == "random-response":
        p, q, ratio = keep, (1 - keep) / (m - 1), keep * (m - 1) / (1 - keep)
    elif case["mechanism"] == "subset-selection":
        w = int(case["subset_size"])
        p, q, ratio = keep, (w - keep) / (m - 1), keep * (m - w) / ((1 - keep) * w)
    else:
        flip = Fraction(int(case["flip_numerator"]), word)
        p, q, ratio = keep, flip, keep * (1 - flip) / ((1 - keep) * flip)
    assert (str(p), str(q)) == (case["p"], case["q"])
    accounted, asked = float(case["epsilon_accounted"]), float(case["epsilon"])
    digits = Context(prec=80)
    exact = digits.ln(digits.divide(Decimal(ratio.numerator), Decimal(ratio.denominator)))
    assert exact <= Decimal(accounted) <= Decimal(asked)
    assert asked - accounted < 1e-9


@named(MECHANISMS["reports"])
def test_reports_have_one_encoding(case: dict[str, Any]) -> None:
    one = make_mechanism(case["mechanism"], float(case["epsilon"]), case["cardinality"])
    wire = bytes.fromhex(case["hex"])
    if case["outcome"] == "refused":
        with pytest.raises(MechanismError) as caught:
            one.decode(wire)
        assert caught.value.code == "MECH-003"
    else:
        report = one.decode(wire)
        assert one.encode(report) == wire
        assert one.tally(one.stack([report])).nonzero()[0].tolist() == case["supports"]


@pytest.mark.parametrize(
    "protocol", [key for key in MANIFESTS if key not in ("about", "specification", "written_by")]
)
def test_manifest_round_trips_and_has_its_digest(protocol: str) -> None:
    case = MANIFESTS[protocol]
    data = bytes.fromhex(case["bytes"])
    assert hashlib.sha256(b"shoal manifest 1\0" + data).hexdigest() == case["digest"]
    manifest = Manifest.from_bytes(data)
    assert (manifest.to_bytes(), manifest.digest.hex(), manifest.short_digest) == (
        data,
        case["digest"],
        case["short"],
    )


@pytest.mark.parametrize("case", MECHANISMS["parameters"])
def test_integers_follow_from_formulas_of_specification(case: dict[str, Any]) -> None:
    with localcontext(Context(prec=120)):
        word, m, given = Decimal(1 << 64), Decimal(case["cardinality"]), float(case["epsilon"])
        L = min(Decimal(given), Decimal(repr(given))).exp()
        match case["mechanism"]:
            case "random-response":
                expected = {"keep_numerator": word - (m - 1) * (word // (L + m - 1) + 1)}
            case "rappor":
                keep = word * L.sqrt() // (L.sqrt() + 1)
                expected = {"keep_numerator": keep, "flip_numerator": word - keep}
            case "pq":
                s = (L * (L + m - 1) / ((m - 1) * L + 1)).sqrt()
                keep = word * s // (1 + s)
                expected = {
                    "keep_numerator": keep,
                    "flip_numerator": word * keep // (keep + (word - keep) * L) + 1,
                }
            case _:
                sizes = [w for w in (m // (L + 1), m // (L + 1) + 1) if w >= 1]
                keeps = {w: word * w * L // (w * L + m - w) for w in sizes}
                errors = {}
                for w, keep in keeps.items():
                    p, q = keep / word, (w - keep / word) / (m - 1)
                    errors[w] = ((m - 1) * q * (1 - q) + p * (1 - p)) / (p - q) ** 2
                best = min(sizes, key=errors.__getitem__)
                expected = {"keep_numerator": keeps[best], "subset_size": best}
    assert {key: int(part) for key, part in expected.items()} == {
        key: int(case[key]) for key in expected
    }


@pytest.mark.parametrize("case", ANONML["tickets"])
def test_assignment_of_ticket_follows_from_file(case: dict[str, Any]) -> None:
    """Compute with integers only.

    The hash, the part with weights that cover the first word, and the rank of the second among all
    combinations.
    """
    digest = hashlib.sha256(
        b"shoal anonml assignment" + bytes.fromhex(ANONML["study"] + case["ticket"])
    ).digest()
    first, second = (int.from_bytes(digest[at : at + 8], "little") for at in (0, 8))
    assert case["words"] == [str(first), str(second)]
    for weights, part in zip(ANONML["weights"], case["parts"], strict=True):
        ends = [int(sum(map(Fraction, weights[: i + 1])) * 2**64) for i in range(len(weights))]
        assert part == next(i for i, end in enumerate(ends) if first < end)
    assert case["below"] == [first * bound >> 64 for bound in ANONML["bounds"]]
    for (n, k), chosen in zip(ANONML["combinations"], case["combinations"], strict=True):
        rank = second * math.comb(n, k) >> 64
        before = sum(
            math.comb(n - 1 - i, k - 1 - place)
            for place in range(k)
            for i in range(chosen[place - 1] + 1 if place else 0, chosen[place])
        )
        assert rank == before


@pytest.mark.parametrize("case", ANONML["feature_subsets"])
def test_feature_subsets_follow_from_file(case: dict[str, Any]) -> None:
    study, size = bytes.fromhex(ANONML["study"]), case["subset_size"]
    for partition, subsets in enumerate(case["subsets"]):
        tag = b"shoal anonml feature subsets 1" + partition.to_bytes(8, "big")
        stream = hashlib.shake_256(tag + study).digest(8 * case["n_features"])
        ranked = sorted(
            range(case["n_features"]), key=lambda j, stream=stream: stream[8 * j : 8 * j + 8]
        )
        assert subsets == [ranked[i * size : (i + 1) * size] for i in range(case["n_subsets"])]


@named(ANONML["read"] + DDML["read"] + SDQ["read"] + PFDS["read"])
def test_protocol_messages_round_trip(case: dict[str, Any]) -> None:
    message = decode(bytes.fromhex(case["hex"]), REGISTRIES[case["type"].split(".")[0]], STUDY)
    assert message.type_name == case["type"]
    assert tag_value(message.model_dump(exclude={"study"})) == case["body"]
    assert encode(message).hex() == case["hex"]
    assert (message.submission or b"").hex() == (case["submission"] or "")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_malformed_protocol_messages_are_rejected(protocol: str) -> None:
    for case in load(f"{protocol}.json")["refused"]:
        with pytest.raises(RemoteProtocolError) as caught:
            decode(bytes.fromhex(case["hex"]), PROTOCOLS[protocol], STUDY)
        assert caught.value.code == case["code"], case["name"]


def _untagged(parts: dict[str, Any]) -> dict[str, Any]:
    return {
        name: int(part["int"]) if "int" in part else bytes.fromhex(part["bytes"])
        for name, part in parts.items()
    }


def _bound(purpose: str, *parts: int | bytes, query: bytes | None = None) -> str:
    """Follow the text of the specification."""
    about = _untagged(SDQ["context"])
    all_parts = (
        about["study"],
        about["roster"],
        about["round"],
        query or about["query"],
        purpose.encode(),
        *parts,
    )
    coded = [
        b"i" + part.to_bytes(8, "big")
        if isinstance(part, int)
        else b"b" + len(part).to_bytes(8, "big") + part
        for part in all_parts
    ]
    return (b"shoal secure sum 1\0" + b"".join(coded)).hex()


def test_signed_statements_follow_specification() -> None:
    key, digest = bytes([1]) * 32, bytes([2]) * 32
    keys = [bytes.fromhex(part) for part in load("crypto.json")["members"]["0"]["keys"]]
    hashes = [hashlib.sha256(part).digest() for part in (b"boxes", b"commitments", b"signatures")]
    dealers = b"".join(dealer.to_bytes(4, "big") for dealer in (0, 1, 3))
    seats = [
        part
        for one in SDQ["committee"]["keys"]
        for part in (_untagged(one)["party"], _untagged(one)["box"])
    ]
    committee = hashlib.sha256(bytes.fromhex(_bound("committee", *seats))).digest()
    assert SDQ["committee"]["query"] == committee.hex()
    assert SDQ["statements"] == {
        "sum.keys": _bound("member's keys", 0, *keys),
        "sum.shares": _bound("all boxes", 0, digest, *hashes),
        "sum.masked": _bound("masked", 0, digest, dealers, hashlib.sha256(b"vector").digest()),
        "sum.unmask": _bound("revealed", 0, hashlib.sha256(b"shares").digest()),
        "sdq.joint-key": _bound("party's key", 2, key),
        "sdq.scores": _bound("sealed scores", 4, 2, key, b"box", query=committee),
        "sealed scores": _bound("scores", 4, 2, query=committee),
    }


@pytest.mark.parametrize(
    "case", SDQ["queries"] + PFDS["queries"], ids=lambda case: case["digest"][:8]
)
def test_query_is_bound_by_hash_of_its_message(case: dict[str, Any]) -> None:
    assert hashlib.sha256(bytes.fromhex(case["hex"])).hexdigest() == case["digest"]


@pytest.mark.parametrize("case", PFDS["tables"])
def test_assignment_of_tables_follows_from_file(case: dict[str, Any]) -> None:
    study, n, m = bytes.fromhex(PFDS["study"]), case["n_attributes"], case["n_holders"]

    def order(what: bytes, count: int) -> list[int]:
        return sorted(
            range(count),
            key=lambda i: hashlib.sha256(
                b"shoal pfds " + what + study + i.to_bytes(8, "big")
            ).digest(),
        )

    q = min(
        n, max(round(0.015 * float(case["epsilon"]) * case["size"] / m), math.ceil(2 * n / m), 1)
    )
    attributes, holders = order(b"attributes", n), order(b"holders", m)
    assert q == case["n_tables"]
    for holder, answered in enumerate(case["attributes"]):
        first = holders.index(holder) * q
        assert answered == sorted(attributes[(first + i) % n] for i in range(q))
