-- Budgets of studies and limits on all units together, version 4 of the ledger's file. Statements never change after release; a later version is another file.
-- The tables are those of version 3. Records have new fields, which an earlier shoal cannot read.

PRAGMA user_version = 4;
