"""Protocols as pure state machines, and the contract between a protocol and its driver."""
