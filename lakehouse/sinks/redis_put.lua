-- Put one gold row where readers look for it, unless a newer version stands there already.
--
-- KEYS  1 the row's own key   2 hash of the latest row per member
--       3 hash of their "<generation> <order> <version>"   4 sorted set of their expiry
-- ARGV  1 generation   2 version   3 the row as JSON that ends with both   4 member   5 order
--       6 time to live, s
--
-- A version counts within its generation: the table's time of creation in ms, so that a table that is made
-- anew, whose versions begin again, replaces what the old one has left. A deleted row is put like any other
-- (its JSON says so), so that an older version that is sent again does not bring it back. Returns 1 where
-- something was written, else 0.

local generation, version, row, member = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]
local order, ttl = tonumber(ARGV[5]), tonumber(ARGV[6])

local function is_less(one, other)
  for position = 1, #one do
    if one[position] ~= other[position] then
      return one[position] < other[position]
    end
  end
  return false
end

local function numbers(text, pattern)
  local found = { string.match(text or "", pattern) }
  for position, digits in ipairs(found) do
    found[position] = tonumber(digits)
  end
  return found[1] and found
end

local standing = numbers(redis.call("GET", KEYS[1]), '"generation":(%d+),"version":(%d+)}$')
if standing and not is_less(standing, { generation, version }) then
  return 0
end
redis.call("SET", KEYS[1], row, "EX", ttl)

local now = tonumber(redis.call("TIME")[1])
local latest = numbers(redis.call("HGET", KEYS[3], member), "^(%d+) (%-?%d+) (%d+)$")
if not latest or is_less(latest, { generation, order, version }) then
  redis.call("HSET", KEYS[2], member, row)
  redis.call("HSET", KEYS[3], member, ARGV[1] .. " " .. ARGV[5] .. " " .. ARGV[2])
  redis.call("ZADD", KEYS[4], now + ttl + 1, member)  -- whole seconds, so not before its row
  for position = 2, 4 do
    redis.call("EXPIRE", KEYS[position], ttl)
  end
end

-- Members that nothing has been heard of for the time to live leave the hash as their rows have left.
for _, gone in ipairs(redis.call("ZRANGEBYSCORE", KEYS[4], "-inf", now)) do
  redis.call("HDEL", KEYS[2], gone)
  redis.call("HDEL", KEYS[3], gone)
  redis.call("ZREM", KEYS[4], gone)
end
return 1
