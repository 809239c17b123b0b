"""Cryptographic building blocks of secure sums and anonymous credentials; no I/O."""
