"""The only place where noise is made. Every draw is exact: integers in, integers out, from a cryptographic source."""
