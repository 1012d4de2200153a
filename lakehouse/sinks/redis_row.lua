-- Put one gold row under its own key, unless a newer version stands there already.
--
-- KEYS  1 the row's own key
-- ARGV  1 generation   2 version   3 the row as JSON that ends with both   4 time to live, s
--
-- A version counts within its generation: the table's time of creation in ms, so that a table that is made
-- anew, whose versions begin again, replaces what the old one has left. A deleted row is put like any other
-- (its JSON says so), so that an older version that is sent again does not bring it back. Returns 2 where
-- the row was written, 1 where this very version stands, and 0 where a newer one does.

local generation, version = tonumber(ARGV[1]), tonumber(ARGV[2])
local pattern = '"generation":(%d+),"version":(%d+)}$'
local standing_generation, standing_version = string.match(redis.call("GET", KEYS[1]) or "", pattern)

if standing_generation then
  local ahead = tonumber(standing_generation) - generation
  if ahead == 0 then
    ahead = tonumber(standing_version) - version
  end
  if ahead > 0 then
    return 0
  elseif ahead == 0 then
    return 1
  end
end
redis.call("SET", KEYS[1], ARGV[3], "EX", ARGV[4])
return 2
