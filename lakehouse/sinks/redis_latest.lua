-- Put one gold row into its group's hash of the latest row per member, unless a later one stands there.
--
-- KEYS  1 the hash   2 hash of the members' "<generation> <order> <version>", with " deleted" where the
--       latest row has been, " open" where another one has come since   3 sorted set of the members' expiry
-- ARGV  1 generation   2 version   3 the row as JSON, empty for a deleted one   4 member   5 order
--       6 time to live, s   7 how many expired members leave the hash at most   8 1 where every standing row
--       of the member is being put, so that the latest of them is the latest   9 1 where a row that is put
--       in the commit which deleted the latest is that one under another key, and is the latest
--
-- Of one generation the row of the greatest order is the latest, of several the newest. Where that one is
-- deleted the member has no row any more. The next one that is put is its latest, whatever its order, but
-- one that was put long ago may be later: the member is open until all that stand have been put.
-- Returns 1 where the member is open, else 0.

local generation, version, row, member = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]
local order, ttl, most = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local are_all_put, rows_move = ARGV[8] == "1", ARGV[9] == "1"
local now = tonumber(redis.call("TIME")[1])

local function note(suffix)
  redis.call("HSET", KEYS[2], member, ARGV[1] .. " " .. ARGV[5] .. " " .. ARGV[2] .. suffix)
  redis.call("ZADD", KEYS[3], now + ttl + 1, member)  -- whole seconds, so not before its row
  for _, key in ipairs(KEYS) do
    redis.call("EXPIRE", key, ttl)
  end
end

local function age_of(standing_generation, standing_order, standing_version)
  -- Negative where this row is later than the one that stands, 0 where it is the same.
  local ages = { standing_generation - generation, standing_order - order, standing_version - version }
  for _, age in ipairs(ages) do
    if age ~= 0 then
      return age
    end
  end
  return 0
end

local stamp = redis.call("HGET", KEYS[2], member) or ""
local g, o, v, suffix = string.match(stamp, "^(%d+) (%-?%d+) (%d+)(.*)$")
local is_vacant = suffix == " deleted"
local is_open = is_vacant or suffix == " open"
if g then
  g, o, v = tonumber(g), tonumber(o), tonumber(v)
  is_open = is_open and g >= generation
end

if row ~= "" then
  local age = g and age_of(g, o, v) or -1
  local is_next = is_vacant and g == generation and not (o == order and v >= version)
  if is_next or age < 0 then
    local is_known = are_all_put or (is_vacant and (age < 0 or (rows_move and v == version)))
    is_open = is_open and not is_known
    redis.call("HSET", KEYS[1], member, row)
    note(is_open and " open" or "")
  elseif age == 0 and not is_vacant and is_open and are_all_put then
    is_open = false
    note("")
  end
elseif g and not is_vacant and (g < generation or (g == generation and o == order and v < version)) then
  redis.call("HDEL", KEYS[1], member)
  note(" deleted")
  is_open = true
end

-- Members that nothing has been heard of for the time to live leave the hash as their rows have left.
for _, gone in ipairs(redis.call("ZRANGEBYSCORE", KEYS[3], "-inf", now, "LIMIT", 0, most)) do
  redis.call("HDEL", KEYS[1], gone)
  redis.call("HDEL", KEYS[2], gone)
  redis.call("ZREM", KEYS[3], gone)
end
return is_open and 1 or 0
