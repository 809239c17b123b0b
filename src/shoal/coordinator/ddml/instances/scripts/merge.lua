-- Merges an update in one step, or changes nothing.
-- KEYS: meta, slot, names of the update's epoch.  ARGV: slot number, id, epoch, weights, version of the slot from which they were computed or ''.
-- Returns: merged, repeated, stale, changed (the slot has another version) or unknown (no such study); number of merged updates.
local meta = redis.call('HMGET', KEYS[1], 'n_merged', 'kept_from', 'version:' .. ARGV[1])
if not meta[1] then return {'unknown', 0} end
if tonumber(ARGV[3]) < tonumber(meta[2]) then return {'stale', tonumber(meta[1])} end
if redis.call('SISMEMBER', KEYS[3], ARGV[2]) == 1 then return {'repeated', tonumber(meta[1])} end
if ARGV[5] ~= '' and ARGV[5] ~= meta[3] then return {'changed', tonumber(meta[1])} end
redis.call('SADD', KEYS[3], ARGV[2])
redis.call('SET', KEYS[2], ARGV[4])
redis.call('HINCRBY', KEYS[1], 'version:' .. ARGV[1], 1)
return {'merged', redis.call('HINCRBY', KEYS[1], 'n_merged', 1)}
