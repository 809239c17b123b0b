"""Speed, memory and the papers' figures.

Each is a ratio to a competitor or to a limit that is measured in the same run.
"""
