-- Replaces the stored average by one with one more fold, if its number of folds is as expected.
-- KEYS: average.  ARGV: expected number of folds (eight bytes), or '' if there is no average; new average, which begins with its number of folds.
-- Returns: 1 if replaced, otherwise 0.
if redis.call('GETRANGE', KEYS[1], 0, 7) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
