-- Deletes the names of updates of earlier epochs.  KEYS: meta, which is also the prefix of the keys of names.  ARGV: first epoch that is kept.
local kept_from = tonumber(redis.call('HGET', KEYS[1], 'kept_from'))
if not kept_from or tonumber(ARGV[1]) <= kept_from then return end
redis.call('HSET', KEYS[1], 'kept_from', ARGV[1])
for epoch = kept_from, tonumber(ARGV[1]) - 1 do
    redis.call('UNLINK', KEYS[1] .. ':names:' .. epoch)
end
