"""Whole populations inside one process: a faulty network in virtual time."""
