-- Admits one call, or says why not. A refused call changes nothing but the windows' clocks.
--
-- KEYS: state ring calls slots spent of the app; with end user limits also state ring slots spent of the user.
-- ARGV: 1 owner, 2 user (or -), 3 lease in ms, 4-11 limits of the app, 12-19 of the user, last 'id tokens hold'.
-- Limits: requests/minute, tokens/minute, requests/day, tokens/day, concurrency (0: none), then budgets in total,
-- per day, per month ('-': none, '~': counted only). Money is 1e-12 in decimal digits and is only ever added to by
-- HINCRBY: as a double it is compared, never computed. Rounding to doubles keeps order, so two doubles that
-- differ say which amount is larger; equal ones are compared by their digits.
--
-- Replies: 'U subject day month'                          state unknown: open it first
--          'A where [limit left reset]...'                admitted; where: buckets and periods that count it
--          'R what subject window limit used wait [...]'  refused; wait in whole seconds
--          'B subject period used amount'                 refused: the budget is short
local owner, user, lease = ARGV[1], ARGV[2], tonumber(ARGV[3])
local id, tokens_text, hold = string.match(ARGV[#ARGV], '^(%S+) (%d+) (%d+)$')
local tokens = tonumber(tokens_text)
local time = call('TIME')
local now = tonumber(time[1])
local exact_now = now + tonumber(time[2]) / 1000000
local now_ms = floor(exact_now * 1000)
local day = floor(now / 86400)
local month = false

-- Civil month of a day since the epoch (H. Hinnant, chrono-compatible low-level date algorithms).
local function month_of(days)
  local z = days + 719468
  local era = floor(z / 146097)
  local doe = z - era * 146097
  local yoe = floor((doe - floor(doe / 1460) + floor(doe / 36524) - floor(doe / 146096)) / 365)
  local mp = floor((5 * (doe - (365 * yoe + floor(yoe / 4) - floor(yoe / 100))) + 2) / 153)
  local m = mp < 10 and mp + 3 or mp - 9
  local y = yoe + era * 400 + (m <= 2 and 1 or 0)
  return string.format('%04d%02d', y, m)
end

local function field_of(period)
  if period == 1 then
    return 'total'
  elseif period == 2 then
    return 'day:' .. day
  end
  month = month or month_of(day)
  return 'month:' .. month
end

-- When a full window has room again: seconds from now until `need` of what (1 requests, 2 tokens) has left.
local function wait_for(ring, slots, width, place, at, what, need)
  local all = call('GETRANGE', ring, place, place + slots * 16 - 1)
  for b = at - slots + 1, at - 1 do
    local i = b % slots * 16
    if #all >= i + 16 then
      local r, t = unpack(PAIR, all, i + 1)
      need = need - (what == 1 and r or t)
      if need <= 0 then
        return (b + slots) * width - exact_now
      end
    end
  end
  return (at + slots) * width - exact_now
end

local function duration(seconds)
  if seconds < 1 then
    return math.ceil(seconds * 1000) .. 'ms'
  end
  local s = math.ceil(seconds)
  if s < 60 then
    return s .. 's'
  elseif s < 3600 then
    return floor(s / 60) .. 'm' .. s % 60 .. 's'
  end
  return floor(s / 3600) .. 'h' .. floor(s % 3600 / 60) .. 'm' .. s % 60 .. 's'
end

-- 1. Where every subject stands.
local state = call('GET', KEYS[1])
if not state then
  return { ok = 'U app ' .. day .. ' ' .. month_of(day) }
end
local subjects = 1
local states, rings, slots, spents = { state }, { KEYS[2] }, { KEYS[4] }, { KEYS[5] }
if #KEYS > 5 then
  subjects = 2
  states[2], rings[2], slots[2], spents[2] = call('GET', KEYS[6]) or EMPTY, KEYS[7], KEYS[8], KEYS[9]
end
local NAMES = { 'app', 'user' }
local refusal, longest = false, -1
-- The window with the least left, for the headers: limit, left, reset.
local limit_r, left_r, reset_r, limit_t, left_t, reset_t

local function refuse(what, subject, window, limit, used, wait)
  if wait > longest then
    longest = wait
    refusal = 'R ' .. what .. ' ' .. NAMES[subject] .. ' ' .. window .. ' ' .. limit .. ' '
      .. string.format('%.0f', used) .. ' ' .. math.max(1, math.ceil(wait))
  end
end

local function check(subject, window, ring, slot_count, width, place, at, requests, used, max_r, max_t)
  local reset = (at + slot_count) * width - exact_now
  if max_r ~= '0' then
    local left = tonumber(max_r) - requests
    if left < 1 then
      refuse('requests', subject, window, max_r, requests,
        wait_for(ring, slot_count, width, place, at, 1, 1 - left))
    end
    if not left_r or left < left_r then
      limit_r, left_r, reset_r = max_r, left, reset
    end
  end
  if max_t ~= '0' then
    local left = tonumber(max_t) - used
    if left < tokens then
      refuse('tokens', subject, window, max_t, used,
        wait_for(ring, slot_count, width, place, at, 2, tokens - left))
    end
    if not left_t or left < left_t then
      limit_t, left_t, reset_t = max_t, left, reset
    end
  end
end

local moved = {}
local windows = {}
for s = 1, subjects do
  local base = 4 + (s - 1) * 8
  local max_rm, max_tm, max_rd, max_td = ARGV[base], ARGV[base + 1], ARGV[base + 2], ARGV[base + 3]
  local m, mr, mt, mcr, mct, d, dr, dt, dcr, dct = unpack(STATE, states[s])
  local m_before, d_before = m, d
  local by_minute, by_day = max_rm ~= '0' or max_tm ~= '0', max_rd ~= '0' or max_td ~= '0'
  if by_minute then
    m, mr, mt, mcr, mct = advance(rings[s], MINUTE_SLOTS, MINUTE_WIDTH, MINUTE_PLACE, now, m, mr, mt, mcr, mct)
    check(s, 'minute', rings[s], MINUTE_SLOTS, MINUTE_WIDTH, MINUTE_PLACE, m, mr, mt, max_rm, max_tm)
  end
  if by_day then
    d, dr, dt, dcr, dct = advance(rings[s], DAY_SLOTS, DAY_WIDTH, DAY_PLACE, now, d, dr, dt, dcr, dct)
    check(s, 'day', rings[s], DAY_SLOTS, DAY_WIDTH, DAY_PLACE, d, dr, dt, max_rd, max_td)
  end
  moved[s] = m ~= m_before or d ~= d_before
  windows[s] = { by_minute, by_day, m, mr, mt, mcr, mct, d, dr, dt, dcr, dct }
  local most = tonumber(ARGV[base + 4])
  if most > 0 then
    local held = call('ZCARD', slots[s])
    if held >= most then
      call('ZREMRANGEBYSCORE', slots[s], '-inf', now_ms)
      held = call('ZCARD', slots[s])
      if held >= most then
        refuse('concurrency', s, 'none', most, held, 0)
      end
    end
  end
end

-- 2. Money, last of all checks: it is taken, and given back if it was too much.
local taken = {}
local function give_back()
  for i = 1, #taken, 2 do
    call('HINCRBY', taken[i], taken[i + 1], '-' .. hold)
  end
end
for s = 1, subjects do
  for period = 1, 3 do
    local amount = ARGV[8 + (s - 1) * 8 + period]
    if amount ~= '-' and hold ~= '0' then
      local field = field_of(period)
      local short = false
      if refusal then
        -- Refused anyway: only which refusal is given depends on this, so a sum of doubles will do.
        local used = call('HGET', spents[s], field)
        short = used and amount ~= '~' and tonumber(used) + tonumber(hold) > tonumber(amount)
      elseif call('HEXISTS', spents[s], field) == 0 then
        give_back()
        return { ok = 'U ' .. NAMES[s] .. ' ' .. day .. ' ' .. month_of(day) }
      else
        local used = call('HINCRBY', spents[s], field, hold)
        taken[#taken + 1], taken[#taken + 2] = spents[s], field
        if amount ~= '~' then
          local most = tonumber(amount)
          short = used > most
          if used == most then
            local digits = call('HGET', spents[s], field)
            short = #digits > #amount or (#digits == #amount and digits > amount)
          end
        end
      end
      if short then
        give_back()
        local PERIODS = { 'total', 'day', 'month' }
        refusal = 'B ' .. NAMES[s] .. ' ' .. PERIODS[period] .. ' '
          .. call('HGET', spents[s], field) .. ' ' .. amount
        taken = {}
        break
      end
    end
  end
  if refusal and string.byte(refusal) == 66 then
    break
  end
end

-- 3. Count it.
local where = '0:0:0:0'
if not refusal then
  local a, u = windows[1], windows[2]
  where = a[3] .. ':' .. a[8] .. ':' .. (u and u[3] or 0) .. ':' .. (u and u[8] or 0)
  where = where .. ':' .. day .. ':' .. (month or '0')
  call('HSET', KEYS[3], id, where .. ' ' .. owner .. ' ' .. user .. ' ' .. tokens_text .. ' ' .. hold)
end
for s = 1, subjects do
  local w = windows[s]
  if not refusal then
    local most = tonumber(ARGV[8 + (s - 1) * 8])
    if most > 0 then
      call('ZADD', slots[s], now_ms + lease, id)
      if s == 2 then
        call('PEXPIRE', slots[s], lease * 2)
      end
    end
    if w[1] then
      w[4], w[5], w[6], w[7] = w[4] + 1, w[5] + tokens, w[6] + 1, w[7] + tokens
    end
    if w[2] then
      w[9], w[10], w[11], w[12] = w[9] + 1, w[10] + tokens, w[11] + 1, w[12] + tokens
    end
  end
  if moved[s] or (not refusal and (w[1] or w[2])) then
    local packed = pack(STATE, w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12])
    if s == 1 then
      call('SET', KEYS[1], packed)
    else
      -- A user's windows are forgotten when all has left them.
      call('SET', KEYS[6], packed, 'EX', 90000)
      if moved[s] then
        call('EXPIRE', KEYS[7], 90000)
      end
    end
  end
end

local reply = refusal or 'A ' .. where
local one = refusal and 0 or 1
if limit_r then
  reply = reply .. ' ' .. limit_r .. ' ' .. string.format('%.0f', math.max(0, left_r - one)) .. ' ' .. duration(reset_r)
end
if limit_t then
  reply = reply .. ' ' .. limit_t .. ' ' .. string.format('%.0f', math.max(0, left_t - one * tokens)) .. ' '
    .. duration(reset_t)
end
return { ok = reply }
