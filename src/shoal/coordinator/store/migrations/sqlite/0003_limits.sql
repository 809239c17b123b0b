-- Version 3: limits on registrations, and a rewrite in small steps.

-- How many have registered for credentials of a scope.
CREATE TABLE membership (
    scope BLOB PRIMARY KEY,
    n INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO membership (scope, n) SELECT scope, count(*) FROM registration GROUP BY scope;

-- Digests of the commitments of a scope: each is of one key. Before this version several keys could
-- register with one commitment.
CREATE TABLE commitment (
    scope BLOB NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (scope, digest)
) WITHOUT ROWID;
INSERT INTO commitment (scope, digest) SELECT DISTINCT scope, commitment FROM registration ORDER BY scope, commitment;

-- How many participants have enrolled or registered since their rows were last rewritten in order.
ALTER TABLE standing ADD COLUMN n_unsorted INTEGER NOT NULL DEFAULT 0;
UPDATE standing SET n_unsorted = 1 WHERE NOT is_mixed;
ALTER TABLE standing DROP COLUMN is_mixed;
