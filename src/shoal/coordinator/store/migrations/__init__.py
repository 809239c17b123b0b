"""Numbered SQL migrations of a coordinator's store, in one folder for each database.

`shoal.coordinator.store.sql` reads them. The statements of a released script never change: stores
that ran it would differ from new ones.
"""
