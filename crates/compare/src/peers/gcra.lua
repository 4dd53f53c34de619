-- The generic cell rate algorithm, as CL.THROTTLE of redis-cell decides and answers.
-- KEYS: the key. ARGV: burst, count, period in seconds, quantity.
local burst, count = tonumber(ARGV[1]), tonumber(ARGV[2])
local period, quantity = tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval = period * 1000000 / count
local tolerance = interval * (burst + 1)
local increment = interval * quantity
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local new_tat = tat + increment
local limited, retry_us, ttl = 0, -1000000, new_tat - now
if new_tat - tolerance > now then
  limited, ttl = 1, tat - now
  if increment <= tolerance then
    retry_us = new_tat - tolerance - now
  end
else
  redis.call('SET', KEYS[1], string.format('%.0f', new_tat), 'PX', math.ceil(ttl / 1000))
end
local remaining = math.max(math.floor((tolerance - ttl) / interval), 0)
return {limited, burst + 1, remaining, math.ceil(retry_us / 1000000), math.ceil(ttl / 1000000)}
