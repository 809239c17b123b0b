"""Protocols as pure state machines, and the contract that they share with whatever drives them."""
