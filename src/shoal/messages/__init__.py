"""Typed messages and their encoding."""
