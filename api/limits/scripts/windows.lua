-- Sliding windows, shared by admit and settle (put in front of each when it is loaded).
--
-- A window is a ring of buckets and the sum over them. The minute has 61 buckets of one second, the day 97 of
-- 15 minutes: one more than the window, so that a count leaves only when it is surely older than the window.
-- The state of both is ten doubles in one string: for each window the bucket of the last call, requests and
-- tokens of the whole window, requests and tokens of that bucket. Older buckets lie in the ring, two doubles each.
local MINUTE_SLOTS, MINUTE_WIDTH, MINUTE_PLACE = 61, 1, 0
local DAY_SLOTS, DAY_WIDTH, DAY_PLACE = 97, 900, 976
local STATE, PAIR = '<dddddddddd', '<dd'
local EMPTY = string.rep('\0', 80)
local call, floor, pack, unpack = redis.call, math.floor, struct.pack, struct.unpack

-- Moves a window on to `now` (seconds); what is older leaves the sums. When the server's clock steps back, time
-- stands still for the window.
local function advance(ring, slots, width, place, now, at, requests, tokens, r, t)
  local bucket = floor(now / width)
  if bucket <= at then
    return at, requests, tokens, r, t
  end
  if bucket - at >= slots then
    if at > 0 then
      call('SETRANGE', ring, place, string.rep('\0', slots * 16))
    end
    return bucket, 0, 0, 0, 0
  end
  call('SETRANGE', ring, place + at % slots * 16, pack(PAIR, r, t))
  local all = call('GETRANGE', ring, place, place + slots * 16 - 1)
  for b = at + 1, bucket do
    local i = b % slots * 16
    if #all >= i + 16 then
      local gone_r, gone_t = unpack(PAIR, all, i + 1)
      if gone_r ~= 0 or gone_t ~= 0 then
        requests, tokens = requests - gone_r, tokens - gone_t
        call('SETRANGE', ring, place + i, pack(PAIR, 0, 0))
      end
    end
  end
  return bucket, requests, tokens, 0, 0
end

-- Corrects what was counted in `bucket` (0: in none), unless that has left the window.
local function correct(ring, slots, place, bucket, more_r, more_t, at, requests, tokens, r, t)
  if bucket == at and bucket > 0 then
    return requests + more_r, tokens + more_t, r + more_r, t + more_t
  end
  if bucket <= 0 or bucket > at or bucket <= at - slots then
    return requests, tokens, r, t
  end
  local i = place + bucket % slots * 16
  local old = call('GETRANGE', ring, i, i + 15)
  if #old < 16 then
    return requests, tokens, r, t
  end
  local old_r, old_t = unpack(PAIR, old)
  call('SETRANGE', ring, i, pack(PAIR, old_r + more_r, old_t + more_t))
  return requests + more_r, tokens + more_t, r, t
end
