"""How much a message would come to, before it is read: a stranger's bytes are measured first.

One byte of CBOR can be an empty map, which takes a hundred bytes of memory and some microseconds to read. So what fits its limit of bytes
is counted too, which takes no memory and ends at the limit. Nobody has very many values to send: what is long is an array of numbers, and
travels as bytes.
"""

from __future__ import annotations

from shoal.errors import RemoteProtocolError

_TAKES_A_LENGTH, _IS_ENDLESS = 24, 28
_BYTES, _TEXT = 2, 3


def check_values(data: bytes, most: int) -> None:
    """Refuse a message of more values than so many, arrays and maps among them: ``MSG-001``.

    Notes
    -----
    Heads are counted in the order in which the decoder comes to them. What is malformed ends the count, because it ends the decoder too.

    Examples
    --------
    >>> check_values(bytes.fromhex("a161618101"), most=4)
    >>> check_values(bytes.fromhex("a161618101"), most=3)
    Traceback (most recent call last):
    shoal.errors.RemoteProtocolError: MSG-001  A message of 5 bytes holds more than 3 values.
    """
    at = n = 0
    while at < len(data):
        n += 1
        if n > most:
            raise RemoteProtocolError("MSG-001", f"A message of {len(data)} bytes holds more than {most:,} values.")
        kind, length = data[at] >> 5, data[at] & 31
        at += 1
        if length >= _IS_ENDLESS:
            return
        if length >= _TAKES_A_LENGTH:
            n_bytes = 1 << (length - _TAKES_A_LENGTH)
            length = int.from_bytes(data[at : at + n_bytes], "big")
            at += n_bytes
        if kind in (_BYTES, _TEXT):
            at += length
