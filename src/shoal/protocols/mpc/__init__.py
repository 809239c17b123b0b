"""Joint computations among peers."""
