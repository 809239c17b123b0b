"""Reads that the SQL instance stores share.

`shoal.coordinator.ddml.instances.sqlite` and `shoal.coordinator.ddml.instances.postgres` derive
from `SqlInstanceStore` and add what differs: connections, transactions and writes. Queries have
``?`` for each value.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.coordinator.ddml.instances.base import (
    MEAN,
    Average,
    Body,
    DrawnInstance,
    InstanceStore,
    MergeOutcome,
    PendingUpdate,
    missing_instances_error,
    stack_instances,
)
from shoal.protocols.ddml.merging import Weights


class SqlInstanceStore(InstanceStore):
    """Instances in a SQL database."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def find_shape(self, study: str) -> tuple[int, int] | None:
        found = self.fetch_one("SELECT k, p FROM ddml WHERE study = ?", study)
        return None if found is None else (found[0], found[1])

    def draw(self, study: str, slot: int) -> DrawnInstance:
        query = (
            "SELECT n_merged, weights FROM ddml JOIN ddml_instance USING (number) WHERE "
            "number = ? AND slot = ?"
        )
        return DrawnInstance(
            *check_found(study, self.fetch_one(query, self.find_number(study), slot))
        )

    def merge(
        self, study: str, slot: int, update_id: bytes, epoch: int, update: Body, blend_factor: float
    ) -> MergeOutcome:
        return self.merge_many(
            study, [PendingUpdate(slot, update_id, epoch, update)], blend_factor
        )[0]

    def has_update(self, study: str, update_id: bytes, epoch: int) -> bool:
        query = "SELECT 1 FROM ddml_update WHERE number = ? AND epoch = ? AND id = ?"
        return self.fetch_one(query, self.find_number(study), epoch, update_id) is not None

    def load_instances(self, study: str) -> Weights:
        query = "SELECT weights FROM ddml_instance WHERE number = ? ORDER BY slot"
        rows = self.fetch_all(query, self.find_number(study))
        return stack_instances([weights for (weights,) in rows])

    def count_merged(self, study: str) -> int:
        query = "SELECT n_merged FROM ddml WHERE number = ?"
        return int(check_found(study, self.fetch_one(query, self.find_number(study)))[0])

    def load_average(self, study: str) -> Average | None:
        query = "SELECT n_folds, weights FROM ddml_average WHERE number = ?"
        found = self.fetch_one(query, self.find_number(study))
        return None if found is None else Average(found[0], np.frombuffer(found[1], MEAN))

    def list_rejections(self, study: str) -> Mapping[str, int]:
        query = "SELECT reason, n FROM ddml_refusal WHERE number = ?"
        return dict(self.fetch_all(query, self.find_number(study)))

    def find_number(self, study: str) -> int:
        """Return the number of a study in the database; it never changes."""
        if study not in self._numbers:
            found = self.fetch_one("SELECT number FROM ddml WHERE study = ?", study)
            self._numbers[study] = check_found(study, found)[0]
        return self._numbers[study]

    @abstractmethod
    def fetch_one(self, query: str, *values: object) -> Any:
        """Return the first row of a query; None if there is none."""

    @abstractmethod
    def fetch_all(self, query: str, *values: object) -> list[Any]:
        """Return all rows of a query."""


def check_found(study: str, row: Any) -> Any:
    """Return a row; raise ``STORE-002`` if it was not found."""
    if row is None:
        raise missing_instances_error(study)
    return row
