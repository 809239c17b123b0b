"""The data holder's program: its ledger, and what it does with a study."""
