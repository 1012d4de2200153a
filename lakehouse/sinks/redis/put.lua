-- Put gold rows, in order: each under its own key, and into its group's hash of the latest row per member.
--
-- KEYS  1 to n the rows' own keys, then three keys of each group: the hash; a hash of the members' stamps,
--       "<generation> <order> <version>", followed by " deleted" if the latest row was deleted, or " open" if
--       another row was put after that; and a sorted set of the members' expiry times
-- ARGV  1 n   2 generation   3 time to live in s   4 the most expired members to remove from each hash
--       5 1 if all existing rows of the members are being put, so that the latest of them is known
--       6 1 if a row that is put by the commit that deleted the latest row is the same row under another key,
--       and so is the latest
--       then six for each row: version, the row as JSON that ends with generation and version, 1 if it is
--       deleted, the number of its group from 1, member, order
--
-- Versions are compared within a generation: when the table was created or adopted, in ms. So a recreated
-- table, whose versions begin again, replaces the rows of the old one. A row is put unless its key has a newer
-- version. A deleted row is put like any other (its JSON marks it), so that an older version that is sent
-- again does not restore it.
--
-- The latest row is the one with the greatest order in the newest generation. If it is deleted, the member has
-- no row. The next row that is put becomes its latest, whatever its order, but an older row may be later: the
-- member is open until all its existing rows have been put.
--
-- Redis may evict a group's hash or its stamps alone. When all existing rows are put, a member in the hash without
-- a stamp is removed, because its row may have been deleted, and a row whose stamp is left is put into the hash.
--
-- Returns for each row 2 if it was written, 1 if Redis has the same version, and 0 if it has a newer one, which
-- leaves the hash unchanged; plus 4 if its member is open.

local WIDTH = 6
local count, generation, ttl, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local are_all_put, rows_move = ARGV[5] == "1", ARGV[6] == "1"
local now = tonumber(redis.call("TIME")[1])

local function put_row(key, version, row)
  local pattern = ',"_generation":(%d+),"_version":(%d+)}$'
  local standing_generation, standing_version = string.match(redis.call("GET", key) or "", pattern)
  if standing_generation then
    local ahead = tonumber(standing_generation) - generation
    if ahead == 0 then
      ahead = tonumber(standing_version) - version
    end
    if ahead >= 0 then
      return ahead > 0 and 0 or 1
    end
  end
  redis.call("SET", key, row, "EX", ARGV[3])
  return 2
end

local function age_of(standing_generation, standing_order, standing_version, order, version)
  -- Negative if this row is later than the existing one, 0 if it is the same.
  local ages = { standing_generation - generation, standing_order - order, standing_version - version }
  for _, age in ipairs(ages) do
    if age ~= 0 then
      return age
    end
  end
  return 0
end

local has_news = {}

local function put_latest(first, version, row, is_deleted, member, order)
  local hash, stamps, expiry = KEYS[first], KEYS[first + 1], KEYS[first + 2]

  local function note(suffix)
    has_news[first] = true
    redis.call("HSET", stamps, member, string.format("%s %s %s%s", ARGV[2], order, version, suffix))
    redis.call("ZADD", expiry, now + ttl + 1, member)  -- whole seconds, so not before its row
  end

  local stamp = redis.call("HGET", stamps, member) or ""
  local g, o, v, suffix = string.match(stamp, "^(%d+) (%-?%d+) (%d+)(.*)$")
  local is_vacant = suffix == " deleted"
  local is_open = is_vacant or suffix == " open"
  if g then
    g, o, v = tonumber(g), tonumber(o), tonumber(v)
    is_open = is_open and g >= generation
  elseif are_all_put then
    redis.call("HDEL", hash, member)
  end
  local order_, version_ = tonumber(order), tonumber(version)

  if not is_deleted then
    local age = g and age_of(g, o, v, order_, version_) or -1
    local is_next = is_vacant and g == generation and not (o == order_ and v >= version_)
    if is_next or age < 0 then
      local is_known = are_all_put or (is_vacant and (age < 0 or (rows_move and v == version_)))
      is_open = is_open and not is_known
      redis.call("HSET", hash, member, row)
      note(is_open and " open" or "")
    elseif age == 0 and not is_vacant and are_all_put then
      local is_lost = not redis.call("HGET", hash, member)
      if is_lost then
        redis.call("HSET", hash, member, row)
      end
      if is_lost or is_open then
        is_open = false
        note("")
      end
    end
  elseif g and not is_vacant and (g < generation or (g == generation and o == order_ and v < version_)) then
    redis.call("HDEL", hash, member)
    note(" deleted")
    is_open = true
  end
  return is_open
end

local found = {}
for n = 1, count do
  local at = 6 + (n - 1) * WIDTH
  local version, row, is_deleted, group = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3] == "1", tonumber(ARGV[at + 4])
  found[n] = put_row(KEYS[n], tonumber(version), row)
  if found[n] > 0 then
    local first = count + 3 * group - 2
    local is_open = put_latest(first, version, row, is_deleted, ARGV[at + 5], ARGV[at + 6])
    found[n] = found[n] + (is_open and 4 or 0)
  end
end

for first = count + 1, #KEYS, 3 do
  for key = first, has_news[first] and first + 2 or 0 do
    redis.call("EXPIRE", KEYS[key], ttl)
  end
  -- Remove members that have not been updated for the time to live: their rows have expired, too.
  for _, gone in ipairs(redis.call("ZRANGEBYSCORE", KEYS[first + 2], "-inf", now, "LIMIT", 0, most)) do
    redis.call("HDEL", KEYS[first], gone)
    redis.call("HDEL", KEYS[first + 1], gone)
    redis.call("ZREM", KEYS[first + 2], gone)
  end
end
return found
