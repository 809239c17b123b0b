"""What a browser's form sends: fields and files as bytes, read strictly; anything that no browser would send is refused."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from shoal.errors import RemoteProtocolError

MOST_FIELDS = 16
MOST_PAIRS_BYTES = 1 << 16
"""Of a form without files, whose fields take long to decode; what has files, or long texts, comes in parts."""

_MOST_HEAD_BYTES = 1 << 12
"""Of what stands before the content of a part."""

URLENCODED, MULTIPART = "application/x-www-form-urlencoded", "multipart/form-data"

_BOUNDARY = re.compile(r"""boundary=(?:"([^"\r\n]{1,70})"|([^\s;,"]{1,70}))\s*$""", re.IGNORECASE)
_NAME = re.compile(rb"""^(?i:content-disposition:[ \t]*form-data;[ \t]*name=)"([a-z_]{1,30})"(?:;|\r\n|$)""", re.MULTILINE)


def fields_of(content_type: str, body: bytes) -> dict[str, bytes]:
    """The fields of a form by their names, each once.

    Raises
    ------
    RemoteProtocolError
        ``HOST-006``: the body is not a form, or not one that a page here has.

    Examples
    --------
    >>> fields_of("application/x-www-form-urlencoded", b"key=7f3a&relay=")
    {'key': b'7f3a', 'relay': b''}
    """
    kind, _, parameters = content_type.partition(";")
    kind = kind.strip().lower()
    if kind == URLENCODED:
        pairs = _pairs(body)
    elif kind == MULTIPART:
        pairs = _parts(body, parameters)
    else:
        raise _unreadable("Its content type is not that of a form.")
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _unreadable("A field is given twice.")
    return found


def _pairs(body: bytes) -> list[tuple[str, bytes]]:
    if len(body) > MOST_PAIRS_BYTES:
        raise _unreadable(f"A form without files has at most {MOST_PAIRS_BYTES:,} bytes.")
    try:
        given = parse_qsl(body.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=MOST_FIELDS)
    except ValueError:
        raise _unreadable("Its fields cannot be told apart.") from None
    return [(name, value.encode()) for name, value in given]


def _parts(body: bytes, parameters: str) -> list[tuple[str, bytes]]:
    found = _BOUNDARY.search(parameters)
    if found is None:
        raise _unreadable("It does not say where its fields end.")
    fence = b"\r\n--" + (found[1] or found[2]).encode("latin-1", "replace")
    first, *parts = (b"\r\n" + body).split(fence, MOST_FIELDS + 1)
    if first or not parts or parts.pop().rstrip(b"\r\n") != b"--":
        raise _unreadable("It breaks off, or has too many fields.")
    return [_part(part) for part in parts]


def _part(part: bytes) -> tuple[str, bytes]:
    end = part.find(b"\r\n\r\n", 2, _MOST_HEAD_BYTES)
    name = _NAME.search(part[2 : max(2, end)])
    if not part.startswith(b"\r\n") or name is None:
        raise _unreadable("A field has no name.")
    return name[1].decode(), part[end + 4 :]


def _unreadable(why: str) -> RemoteProtocolError:
    return RemoteProtocolError("HOST-006", "The form cannot be read.", why=why, fix="Send it from the page once more.")
