"""The command line: one module or package for each command, imported when it is called."""
