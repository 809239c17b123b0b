"""The sections of a report, each made only where there is data for it."""
