"""DDML: Draw and Discard with local noise.

Devices draw one of k instances of a model and send it back after a noisy step, at any time.
"""
