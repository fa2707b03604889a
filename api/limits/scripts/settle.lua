-- Ends one call: its slot and hold are given back, its true charge stays, its tokens are corrected where they
-- were counted. A call that is not open here is settled already, or was never admitted: nothing changes.
--
-- KEYS: as admit. ARGV: 1 '10' whether the call has a slot of the app's, of the user's; last 'id where tokens
-- requests money', the three as differences to what was reserved. where: as admit replied, or '-' when its reply
-- was lost: then all that was taken is given back. Replies 1 when the call was open, else 0.
local has = ARGV[1]
local id, where, tokens, requests, money = string.match(ARGV[#ARGV], '^(%S+) (%S+) (%S+) (%S+) (%S+)$')
if where == '-' then
  local record = call('HGET', KEYS[3], id)
  if not record then
    return 0
  end
  local held, hold
  where, held, hold = string.match(record, '^(%S+) %S+ %S+ (%d+) (%d+)$')
  tokens, requests, money = '-' .. held, '-1', hold == '0' and '0' or '-' .. hold
end
if call('HDEL', KEYS[3], id) == 0 then
  return 0
end
local more_t, more_r = tonumber(tokens), tonumber(requests)
local m, d, user_m, user_d, day, month = string.match(where, '^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+)$')
local FIELD_DAY, FIELD_MONTH = 'day:' .. day, 'month:' .. month
for s = 1, #KEYS > 5 and 2 or 1 do
  local state_key, ring, slots, spent = KEYS[1], KEYS[2], KEYS[4], KEYS[5]
  if s == 2 then
    state_key, ring, slots, spent, m, d = KEYS[6], KEYS[7], KEYS[8], KEYS[9], user_m, user_d
  end
  if string.byte(has, s) == 49 then
    call('ZREM', slots, id)
  end
  if money ~= '0' then
    -- All budgets that are known here have this call's hold, also one that the app got while the call ran. One that
    -- is not known is opened from the ledger, which has this call's charge. What would overflow is beyond every
    -- budget already; it must not keep the rest from being settled.
    local known = call('HMGET', spent, 'total', FIELD_DAY, FIELD_MONTH)
    if known[1] then
      redis.pcall('HINCRBY', spent, 'total', money)
    end
    if known[2] then
      redis.pcall('HINCRBY', spent, FIELD_DAY, money)
    end
    if known[3] then
      redis.pcall('HINCRBY', spent, FIELD_MONTH, money)
    end
  end
  if (more_t ~= 0 or more_r ~= 0) and (m ~= '0' or d ~= '0') then
    local packed = call('GET', state_key)
    if packed then
      local state = { unpack(STATE, packed) }
      for w = 0, 1 do
        local bucket, i, size, place = tonumber(m), 0, MINUTE_SLOTS, MINUTE_PLACE
        if w == 1 then
          bucket, i, size, place = tonumber(d), 5, DAY_SLOTS, DAY_PLACE
        end
        local last, counted = state[i + 1], false
        if bucket > 0 and bucket == last then
          state[i + 4], state[i + 5] = state[i + 4] + more_r, state[i + 5] + more_t
          counted = true
        elseif bucket > last - size and bucket < last and bucket > 0 then
          local o = place + bucket % size * 16
          local old = call('GETRANGE', ring, o, o + 15)
          if #old == 16 then
            local r, t = unpack(PAIR, old)
            call('SETRANGE', ring, o, pack(PAIR, r + more_r, t + more_t))
            counted = true
          end
        end
        if counted then
          state[i + 2], state[i + 3] = state[i + 2] + more_r, state[i + 3] + more_t
        end
      end
      call('SET', state_key, pack(STATE, state[1], state[2], state[3], state[4], state[5], state[6], state[7],
        state[8], state[9], state[10]), 'KEEPTTL')
    end
  end
end
return 1
