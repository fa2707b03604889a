-- Who works with this limits server, and whether it may be trusted to know all their open calls.
--
-- KEYS: born, processes, awaited. ARGV: 1 process, 2 lease in ms, 3 the `born` that this process knows ('' when it
-- is new here), then the processes that it last knew. `born` is written by the first who finds it missing: when a
-- process knew another one, the data was lost, and those that it knew are awaited until they have announced
-- their calls (which they do before they call this) or a lease time has passed.
-- Replies: born, its age in ms, how many are awaited, then the processes that are alive.
local me, lease, known = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('SETNX', KEYS[1], string.format('%.0f', now))
local born = redis.call('GET', KEYS[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
if known ~= '' and known ~= born then
  for i = 4, #ARGV do
    if not redis.call('ZSCORE', KEYS[2], ARGV[i]) then
      redis.call('SADD', KEYS[3], ARGV[i])
    end
  end
end
redis.call('ZADD', KEYS[2], now + lease, me)
redis.call('SREM', KEYS[3], me)
local alive = redis.call('ZRANGE', KEYS[2], 0, -1)
return { ok = born .. ' ' .. string.format('%.0f', now - tonumber(born)) .. ' ' .. redis.call('SCARD', KEYS[3])
  .. ' ' .. table.concat(alive, ' ') }
