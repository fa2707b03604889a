-- Admits one call, or says why not. A refused call changes nothing but the windows' clocks.
--
-- KEYS: state ring calls slots spent of the app; with end user limits also state ring slots spent of the user.
-- ARGV: 1 owner, 2 user (or -), 3 lease in ms, 4-11 limits of the app, 12-19 of the user, last 'id tokens hold',
-- with '!' behind it when the call is refused anyway and only the figures are asked for.
-- Limits: requests/minute, tokens/minute, requests/day, tokens/day, concurrency (0: none), then budgets in total,
-- per day, per month ('-': none, '~': counted only). Money is 1e-12 in decimal digits and is only ever added to by
-- HINCRBY: as a double it is compared, never computed. Rounding to doubles keeps order, so two doubles that
-- differ say which amount is larger; equal ones are compared by their digits.
--
-- Replies: 'U subject time'                               state unknown: open it first; time in seconds
--          'A where [limit left reset]...'                admitted; where: buckets and periods that count it
--          'R what subject window limit used wait [...]'  refused; wait in whole seconds
--          'B subject period used amount [...]'           refused: the budget is short
--          'N [...]'                                      refused before it came here
local id, tokens_text, hold, asks = string.match(ARGV[#ARGV], '^(%S+) (%d+) (%d+)(!?)$')
local tokens = tonumber(tokens_text)
local time = call('TIME')
local now = tonumber(time[1])
local exact_now = now + tonumber(time[2]) / 1000000
local now_ms = floor(exact_now * 1000)
local day, month = floor(now / 86400), '0'
local subjects = #KEYS > 5 and 2 or 1
local refusal, longest = false, -1
-- The window with the least left (of equals the longer), for the headers: limit, left, reset; 1 requests, 2 tokens.
local limit_1, left_1, reset_1, limit_2, left_2, reset_2
local app, user = false, false -- states, unpacked
local app_moved, user_moved = false, false

-- 1. Windows and slots.
for s = 1, subjects do
  local first = s == 1
  local ring, slots, at = KEYS[2], KEYS[4], 4
  local packed = call('GET', first and KEYS[1] or KEYS[6])
  if not first then
    ring, slots, at = KEYS[7], KEYS[8], 12
    packed = packed or EMPTY
  elseif not packed then
    return { ok = 'U app ' .. time[1] }
  end
  local state = { unpack(STATE, packed) }
  for w = 0, 1 do
    local max_r, max_t = ARGV[at + 2 * w], ARGV[at + 2 * w + 1]
    if max_r ~= '0' or max_t ~= '0' then
      local size, width, place = MINUTE_SLOTS, MINUTE_WIDTH, MINUTE_PLACE
      if w == 1 then
        size, width, place = DAY_SLOTS, DAY_WIDTH, DAY_PLACE
      end
      local i = 5 * w
      local last, bucket = state[i + 1], floor(now / width)
      -- Move the window on. When the server's clock steps back, time stands still for the window.
      if bucket > last then
        if bucket - last >= size then
          if last > 0 then
            call('SETRANGE', ring, place, string.rep('\0', size * 16))
          end
          state[i + 2], state[i + 3] = 0, 0
        else
          call('SETRANGE', ring, place + last % size * 16, pack(PAIR, state[i + 4], state[i + 5]))
          local all = call('GETRANGE', ring, place, place + size * 16 - 1)
          for b = last + 1, bucket do
            local o = b % size * 16
            if #all >= o + 16 then
              local r, t = unpack(PAIR, all, o + 1)
              if r ~= 0 or t ~= 0 then
                state[i + 2], state[i + 3] = state[i + 2] - r, state[i + 3] - t
                call('SETRANGE', ring, place + o, pack(PAIR, 0, 0))
              end
            end
          end
        end
        state[i + 1], state[i + 4], state[i + 5] = bucket, 0, 0
        last = bucket
        if first then
          app_moved = true
        else
          user_moved = true
        end
      end
      local reset = (last + size) * width - exact_now
      for what = 1, 2 do
        local most, needed = max_r, 1
        if what == 2 then
          most, needed = max_t, tokens
        end
        if most ~= '0' then
          local left = tonumber(most) - state[i + 1 + what]
          if left < needed then
            -- When has enough left the window? Its buckets from the oldest on say.
            local lacking, wait = needed - left, reset
            local all = call('GETRANGE', ring, place, place + size * 16 - 1)
            for b = last - size + 1, last - 1 do
              local o = b % size * 16
              if #all >= o + 16 then
                local r, t = unpack(PAIR, all, o + 1)
                lacking = lacking - (what == 1 and r or t)
                if lacking <= 0 then
                  wait = (b + size) * width - exact_now
                  break
                end
              end
            end
            if wait > longest then
              longest = wait
              refusal = (what == 1 and 'R requests ' or 'R tokens ') .. (first and 'app ' or 'user ')
                .. (w == 0 and 'minute ' or 'day ') .. most .. ' '
                .. string.format('%.0f %.0f', state[i + 1 + what], math.max(1, math.ceil(wait)))
            end
          end
          if what == 1 then
            if not left_1 or left < left_1 or (left == left_1 and reset > reset_1) then
              limit_1, left_1, reset_1 = most, left, reset
            end
          elseif not left_2 or left < left_2 or (left == left_2 and reset > reset_2) then
            limit_2, left_2, reset_2 = most, left, reset
          end
        end
      end
    end
  end
  local most = ARGV[at + 4]
  if most ~= '0' and call('ZCARD', slots) >= tonumber(most) then
    call('ZREMRANGEBYSCORE', slots, '-inf', now_ms)
    local held = call('ZCARD', slots)
    if held >= tonumber(most) and longest < 0 then
      longest = 0
      refusal = 'R concurrency ' .. (first and 'app' or 'user') .. ' none ' .. most .. ' ' .. held .. ' 1'
    end
  end
  if first then
    app = state
  else
    user = state
  end
end

if asks == '!' then
  refusal = 'N'
end

-- 2. Money, last of all checks: it is taken, and given back if it was too much.
local taken = false
for s = 1, hold == '0' and 0 or subjects do
  local at, spent = 8, KEYS[5]
  if s == 2 then
    at, spent = 16, KEYS[9]
  end
  for period = 1, 3 do
    local amount = ARGV[at + period]
    if amount ~= '-' then
      local field = 'total'
      if period == 2 then
        field = 'day:' .. day
      elseif period == 3 then
        if month == '0' then
          -- Civil month of a day since the epoch (H. Hinnant, chrono-compatible low-level date algorithms).
          local z = day + 719468
          local era = floor(z / 146097)
          local doe = z - era * 146097
          local yoe = floor((doe - floor(doe / 1460) + floor(doe / 36524) - floor(doe / 146096)) / 365)
          local mp = floor((5 * (doe - (365 * yoe + floor(yoe / 4) - floor(yoe / 100))) + 2) / 153)
          local m = mp < 10 and mp + 3 or mp - 9
          month = string.format('%04d%02d', yoe + era * 400 + (m <= 2 and 1 or 0), m)
        end
        field = 'month:' .. month
      end
      local short, unknown = false, false
      if refusal then
        -- Refused anyway: only which refusal is given depends on this, so a sum of doubles will do.
        local used = call('HGET', spent, field)
        short = used and amount ~= '~' and tonumber(used) + tonumber(hold) > tonumber(amount)
      elseif call('HEXISTS', spent, field) == 0 then
        unknown = true
      else
        -- Only what refuses nobody can grow until it overflows: then it is counted no further.
        local used = (amount == '~' and redis.pcall or call)('HINCRBY', spent, field, hold)
        if type(used) == 'number' then
          taken = taken or {}
          taken[#taken + 1], taken[#taken + 2] = spent, field
        end
        if amount ~= '~' then
          local most = tonumber(amount)
          short = used > most
          if used == most then
            local digits = call('HGET', spent, field)
            short = #digits > #amount or (#digits == #amount and digits > amount)
          end
        end
      end
      if short or unknown then
        for i = 1, taken and #taken or 0, 2 do
          call('HINCRBY', taken[i], taken[i + 1], '-' .. hold)
        end
        if unknown then
          refusal = 'U ' .. (s == 1 and 'app ' or 'user ') .. time[1]
        else
          refusal = 'B ' .. (s == 1 and 'app ' or 'user ')
            .. (period == 1 and 'total ' or period == 2 and 'day ' or 'month ')
            .. call('HGET', spent, field) .. ' ' .. amount
        end
        break
      end
    end
  end
  if refusal and string.byte(refusal) ~= 82 then
    break
  end
end

-- 3. Count it.
local reply = refusal
if not refusal then
  local where = string.format('%.0f:%.0f:%.0f:%.0f:', app[1], app[6], user and user[1] or 0, user and user[6] or 0)
    .. day .. ':' .. month
  reply = 'A ' .. where
  call('HSET', KEYS[3], id, where .. ' ' .. ARGV[1] .. ' ' .. ARGV[2] .. ' ' .. tokens_text .. ' ' .. hold)
end
for s = 1, subjects do
  local state, at, moved = app, 4, app_moved
  if s == 2 then
    state, at, moved = user, 12, user_moved
  end
  if not refusal then
    if ARGV[at + 4] ~= '0' then
      local slots = s == 1 and KEYS[4] or KEYS[8]
      call('ZADD', slots, now_ms + tonumber(ARGV[3]), id)
      if s == 2 then
        call('PEXPIRE', slots, 2 * tonumber(ARGV[3]))
      end
    end
    for w = 0, 1 do
      if ARGV[at + 2 * w] ~= '0' or ARGV[at + 2 * w + 1] ~= '0' then
        local i = 5 * w
        state[i + 2], state[i + 3] = state[i + 2] + 1, state[i + 3] + tokens
        state[i + 4], state[i + 5] = state[i + 4] + 1, state[i + 5] + tokens
        moved = true
      end
    end
  end
  if moved then
    local packed = pack(STATE, state[1], state[2], state[3], state[4], state[5], state[6], state[7], state[8],
      state[9], state[10])
    if s == 1 then
      call('SET', KEYS[1], packed)
    else
      -- A user's windows are forgotten when all has left them.
      call('SET', KEYS[6], packed, 'EX', 90000)
      if user_moved then
        call('EXPIRE', KEYS[7], 90000)
      end
    end
  end
end
for what = 1, 2 do
  local limit, left, reset = limit_1, left_1, reset_1
  if what == 2 then
    limit, left, reset = limit_2, left_2, reset_2
  end
  if limit then
    if not refusal then
      left = left - (what == 1 and 1 or tokens)
    end
    reply = reply .. ' ' .. limit .. string.format(' %.0f ', left > 0 and left or 0)
    -- Never less than a minute: what was counted now leaves last.
    local seconds = math.ceil(reset)
    if seconds < 3600 then
      reply = reply .. string.format('%dm%ds', floor(seconds / 60), seconds % 60)
    else
      reply = reply .. string.format('%dh%dm%ds', floor(seconds / 3600), floor(seconds % 3600 / 60), seconds % 60)
    end
  end
end
return { ok = reply }
