-- Creates a study if it does not exist.  KEYS: meta, slots.  ARGV: p, then an instance for each slot.
if redis.call('EXISTS', KEYS[1]) == 1 then return end
for i = 2, #KEYS do
    redis.call('SET', KEYS[i], ARGV[i])
    redis.call('HSET', KEYS[1], 'version:' .. (i - 2), 0)
end
redis.call('HSET', KEYS[1], 'k', #KEYS - 1, 'p', ARGV[1], 'n_merged', 0, 'kept_from', 0)
