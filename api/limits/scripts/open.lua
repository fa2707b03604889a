-- Makes the state of an app, or of one end user, known: used = spent according to the ledger + holds of open calls.
--
-- KEYS: state, calls and spent of the app; or state and calls of the app and spent of the user.
-- ARGV: 1 user (- for the app), 2 seconds until spent is forgotten (0: never), then pairs: field, spent in 1e-12.
-- Replies 1.
local user = ARGV[1]
if user == '-' then
  call('SETNX', KEYS[1], EMPTY)
end
local calls = false
for i = 3, #ARGV, 2 do
  local field = ARGV[i]
  if call('HSETNX', KEYS[3], field, ARGV[i + 1]) == 1 then
    local kind = string.match(field, '^(%a+)')
    for _, old in ipairs(call('HKEYS', KEYS[3])) do
      -- The period before stays: calls that began in it still settle there.
      if string.match(old, '^(%a+)') == kind and old ~= field and kind ~= 'total' then
        local at, now = tonumber(string.match(old, '%d+')), tonumber(string.match(field, '%d+'))
        if at < now - (kind == 'day' and 2 or 100) then
          call('HDEL', KEYS[3], old)
        end
      end
    end
    calls = calls or call('HVALS', KEYS[2])
    for _, record in ipairs(calls) do
      local day, month, whose, hold = string.match(record, '^%d+:%d+:%d+:%d+:(%d+):(%d+) %S+ (%S+) %d+ (%d+)$')
      local counted_in = { total = 'total', day = 'day:' .. day, month = 'month:' .. month }
      if counted_in[kind] == field and hold ~= '0' and (user == '-' or user == whose) then
        call('HINCRBY', KEYS[3], field, hold)
      end
    end
  end
end
if ARGV[2] ~= '0' then
  call('EXPIRE', KEYS[3], ARGV[2])
end
return 1
