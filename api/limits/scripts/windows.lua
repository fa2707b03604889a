-- How a subject's sliding windows are kept (put in front of the scripts that touch them).
--
-- A window is a ring of buckets and the sum over them. The minute has 61 buckets of one second, the day 97 of
-- 15 minutes: one more than the window, so that a count leaves only when it is surely older than the window.
-- The state of both is ten doubles in one string: for each window the bucket of the last call, requests and
-- tokens of the whole window, requests and tokens of that bucket. Older buckets lie in the ring, two doubles each,
-- the minute's first, at bucket % slots.
--
-- The scripts make no closures and few tables where all is well: that is what a call costs.
local STATE, PAIR, EMPTY = '<dddddddddd', '<dd', string.rep('\0', 80)
local MINUTE_SLOTS, MINUTE_WIDTH, MINUTE_PLACE = 61, 1, 0
local DAY_SLOTS, DAY_WIDTH, DAY_PLACE = 97, 900, 976
local call, floor, pack, unpack = redis.call, math.floor, struct.pack, struct.unpack
