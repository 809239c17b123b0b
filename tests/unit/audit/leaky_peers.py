"""Peers that reveal their rows in a part of their output without a price, or with too little noise.

The audit must find each of them. Those of the first four classes pass an audit that compares only
the parts of an output that an honest peer puts its rows into.
"""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from shoal.audit.anonml import make_corner_rows
from shoal.mechanisms.packed_bits import PackedFrequencyOracle
from shoal.messages.base import Array
from shoal.protocols.anonml.peer import AnonMLPeer
from shoal.protocols.anonml.questions import AssignedRows
from shoal.protocols.base import WakeAt
from shoal.protocols.ddml.messages import ID_BYTES
from shoal.protocols.ddml.peer import DDMLPeer
from shoal.protocols.pfds.peer import LocalPeer
from shoal.protocols.pfds.tables import count_tables
from shoal.protocols.sdq.peer import SDQPeer


class LabelInId(DDMLPeer):
    """A device that writes its label into the id of an update."""

    def answer(self, state, question, entropy):
        honest = super().answer(state, question, entropy)
        return honest.replace(id=bytes([int(self.label)]) + honest.id[1:])

    @property
    def label(self):
        return self._rows.reveal().take(slice(1)).targets[0]


class LabelInParity(LabelInId):
    """A device whose label is the parity of its last weight."""

    def answer(self, state, question, entropy):
        honest = DDMLPeer.answer(self, state, question, entropy)
        weights = honest.weights.expect("int32", honest.weights.count).copy()
        weights[-1] += (int(weights[-1]) ^ int(self.label)) & 1
        return honest.replace(weights=Array.from_values(weights))


class LabelInOtherCell(AnonMLPeer):
    """A person whose label is a bit of a cell that none of the audit's rows is in."""

    def answer(self, state, question, entropy):
        honest = super().answer(state, question, entropy)
        asked = next(
            self.script.questions(ask.phase, ask.publication)[honest.question]
            for ask in state.heard
            if ask.phase == honest.phase
        )
        columns, labels = make_corner_rows(self.script)
        row = self._row.reveal()
        corners = AssignedRows(columns, labels, np.repeat(row.words, len(labels), axis=0))
        used, report = set(asked.find_cells(corners).tolist()), bytearray(honest.report)
        free = [cell for cell in range(asked.n_cells) if cell not in used]
        if not isinstance(asked.mechanism, PackedFrequencyOracle) or not free:
            return honest
        at, bit = divmod(free[-1], 8)
        report[at] = report[at] & ~(1 << bit) | int(row.labels[0] > 0) << bit
        return honest.replace(report=bytes(report))


class SharedNoise(LocalPeer):
    """A holder that adds the same noise to the counts of all classes of a cell."""

    def answer(self, state, question, entropy):
        honest = super().answer(state, question, entropy)
        counts = count_tables(self.params, self._rows.reveal(), self.attributes)
        noisy = honest.counts.expect("int64", honest.counts.count)
        noise = (noisy - counts).reshape(-1, self.params.n_sides)
        shared = np.repeat(noise[:, -1:], self.params.n_sides, axis=1).ravel()
        return honest.replace(counts=Array.from_values(counts + shared))


class NoiseInId(DDMLPeer):
    """A device that uses random bits of its report in the id of an update."""

    def answer(self, state, question, entropy):
        return super().answer(state, question, entropy).replace(id=entropy.bytes(ID_BYTES))


class EarlyAlarm(SDQPeer):
    """A database that sets an alarm at a time that depends on its rows."""

    def on_message(self, state, message, now, entropy):
        state, effects = super().on_message(state, message, now, entropy)
        seconds = len(self._table.reveal().cells)
        return state, (*effects, WakeAt(now + timedelta(seconds=seconds)))
