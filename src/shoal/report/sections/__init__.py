"""The sections of a report; each function returns None if a document has no data for it."""
