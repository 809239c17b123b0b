"""Numbered SQL migrations of a coordinator's store, in one folder for each database.

`shoal.coordinator.store.sql` reads them. A released script never changes: stores that ran it would
differ from new ones.
"""
