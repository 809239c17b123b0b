"""What travels: strict, frozen messages and their one encoding."""
