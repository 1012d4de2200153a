-- Write gold rows in order: each row to its own key, and each member's latest row to its group's hash.
--
-- KEYS  1 to n: the rows' own keys. Then three keys for each group: a hash of the members' latest rows, a hash of
--       the members' stamps, and a sorted set of the members' expiry times. A stamp is the latest row's
--       "<generation> <order> <version>", followed by " deleted" if that row was deleted, or by " open" if it was
--       written after a deleted row and a later row may exist.
-- ARGV  1 the number of rows, n
--       2 the generation
--       3 the time to live, in seconds
--       4 the maximum number of expired members to remove from each hash
--       5 1 if all existing rows of the members are being written, so each member's latest row is known
--       6 1 if a row can move to another key: if one commit deletes the latest row and writes another row, both are
--         the same row, so the other row is the latest
--       Then six for each row: its version, its JSON (which ends with the generation and version), 1 if it is
--       deleted, its group's number (from 1), its member, and its order.
--
-- A generation is the time in ms at which the table was created or adopted. Versions are compared only within a
-- generation, so a recreated table's rows replace the old table's rows although its versions start over. A row is
-- written unless its key has a newer version. A deleted row is also written, with a mark in its JSON, so resending
-- an older version does not restore the row.
--
-- A member's latest row is the row with the greatest order in the newest generation. If that row is deleted, the
-- member has no latest row. The next row that is written becomes the latest, whatever its order. A different
-- existing row may be later, so the member is open until all of its existing rows have been written.
--
-- Redis may evict a group's hash but not its stamps, or its stamps but not its hash. When all existing rows are
-- written, a member without a stamp is removed from the hash, because its row may have been deleted. A row that has
-- a stamp but is missing from the hash is added to the hash.
--
-- Returns for each row 2 if it was written, 1 if Redis has the same version, or 0 if Redis has a newer version. With
-- 0, the hash is unchanged. 4 is added if the row's member is open. 8 is added if another table's newer generation
-- holds the row back from its own key (the result is then just 8) or from its group's hash.

local WIDTH, HELD = 6, 8
local count, generation, ttl, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local are_all_put, rows_move = ARGV[5] == "1", ARGV[6] == "1"
local now = tonumber(redis.call("TIME")[1])

local function put_row(key, version, row)
  local pattern = ',"_generation":(%d+),"_version":(%d+)}$'
  local standing_generation, standing_version = string.match(redis.call("GET", key) or "", pattern)
  if standing_generation then
    local newer_by, ahead = tonumber(standing_generation) - generation, tonumber(standing_version) - version
    if newer_by > 0 then
      return HELD
    elseif newer_by == 0 and ahead >= 0 then
      return ahead > 0 and 0 or 1
    end
  end
  redis.call("SET", key, row, "EX", ARGV[3])
  return 2
end

local function age_of(standing_generation, standing_order, standing_version, order, version)
  -- Returns a negative number if this row is later than the existing row, and 0 if they are the same.
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
    redis.call("ZADD", expiry, now + ttl + 1, member)  -- rounded up, so its row expires first
  end

  local stamp = redis.call("HGET", stamps, member) or ""
  local g, o, v, suffix = string.match(stamp, "^(%d+) (%-?%d+) (%d+)(.*)$")
  local is_vacant = suffix == " deleted"
  local is_open = is_vacant or suffix == " open"
  if g then
    g, o, v = tonumber(g), tonumber(o), tonumber(v)
    if g > generation then
      return HELD
    end
    is_open = is_open and g == generation
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
  return is_open and 4 or 0
end

local found = {}
for n = 1, count do
  local at = 6 + (n - 1) * WIDTH
  local version, row, is_deleted, group = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3] == "1", tonumber(ARGV[at + 4])
  found[n] = put_row(KEYS[n], tonumber(version), row)
  if found[n] == 1 or found[n] == 2 then
    local first = count + 3 * group - 2
    found[n] = found[n] + put_latest(first, version, row, is_deleted, ARGV[at + 5], ARGV[at + 6])
  end
end

for first = count + 1, #KEYS, 3 do
  for key = first, has_news[first] and first + 2 or 0 do
    redis.call("EXPIRE", KEYS[key], ttl)
  end
  -- Remove members that were not updated within the time to live, because their rows have also expired.
  for _, gone in ipairs(redis.call("ZRANGEBYSCORE", KEYS[first + 2], "-inf", now, "LIMIT", 0, most)) do
    redis.call("HDEL", KEYS[first], gone)
    redis.call("HDEL", KEYS[first + 1], gone)
    redis.call("ZREM", KEYS[first + 2], gone)
  end
end
return found
