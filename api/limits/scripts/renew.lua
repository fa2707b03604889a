-- Renews the leases of open calls, and announces those that the server does not know (it lost its data).
--
-- KEYS: calls of the app, slots and spent of the app, slots and spent of the user (both users' may be missing).
-- ARGV: 1 lease in ms, 2 as settle's first, then for each call: id, record, hold.
-- Replies with one digit per call: 1 when it had to be announced.
local lease, has = tonumber(ARGV[1]), ARGV[2]
local time = call('TIME')
local expiry = tonumber(time[1]) * 1000 + floor(tonumber(time[2]) / 1000) + lease
local said = {}
for i = 3, #ARGV, 3 do
  local id, record, hold = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local news = call('HSETNX', KEYS[1], id, record)
  said[#said + 1] = news
  local day, month = string.match(record, '^%d+:%d+:%d+:%d+:(%d+):(%d+) ')
  local FIELDS = { 'total', 'day:' .. day, 'month:' .. month }
  for s = 1, (#KEYS - 1) / 2 do
    local slots, spent = KEYS[s * 2], KEYS[s * 2 + 1]
    if string.byte(has, s) == 49 then
      call('ZADD', slots, expiry, id)
      if s == 2 then
        call('PEXPIRE', slots, lease * 2)
      end
    end
    if news == 1 and hold ~= '0' then
      for period = 1, 3 do
        if call('HEXISTS', spent, FIELDS[period]) == 1 then
          call('HINCRBY', spent, FIELDS[period], hold)
        end
      end
    end
  end
end
return { ok = table.concat(said) }
