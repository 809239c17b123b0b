"""Small computations that several peers run together, so that each learns its result and nobody learns more."""
