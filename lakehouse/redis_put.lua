-- Put one gold row where readers look for it, unless a newer version stands there already.
--
-- KEYS  1 the row's own key   2 hash of the latest row per member   3 hash of their "<order> <version>"
--       4 sorted set of their expiry
-- ARGV  1 version   2 the row as JSON that ends with its version   3 member   4 order   5 time to live, s
--
-- A deleted row is put like any other (its JSON says so), so that an older version that is sent again
-- does not bring it back. Returns 1 where something was written, else 0.

local version, row, member, order, ttl = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

local standing = redis.call("GET", KEYS[1])
if standing and tonumber(string.match(standing, '"version":(%d+)}$')) >= version then
  return 0
end
redis.call("SET", KEYS[1], row, "EX", ttl)

local now = tonumber(redis.call("TIME")[1])
local stamp = redis.call("HGET", KEYS[3], member)
local replaces = true
if stamp then
  local latest_order, latest_version = string.match(stamp, "^(%-?%d+) (%d+)$")
  latest_order, latest_version = tonumber(latest_order), tonumber(latest_version)
  replaces = order > latest_order or (order == latest_order and version > latest_version)
end
if replaces then
  redis.call("HSET", KEYS[2], member, row)
  redis.call("HSET", KEYS[3], member, ARGV[4] .. " " .. ARGV[1])
  redis.call("ZADD", KEYS[4], now + ttl, member)
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
