-- Keeps an average that has one fold more than the one that is there.  KEYS: average.  ARGV: the folds that should be there, or ''; the new one.
-- Both begin with the number of folds in eight bytes.
if redis.call('GETRANGE', KEYS[1], 0, 7) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
