"""Browser pages of a coordinator."""
