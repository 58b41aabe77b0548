"""What runs inside Redis, so that each decision is one step for all gateways: `account` and `limits` once more, in Lua.

A key's state is one hash (debts of its buckets, what is held), one sorted set of leases, and a number per budget
window. A lease is one request under way; its member is NAME:TOKENS:COST and its score the time at which it lapses, for
a gateway that dies lets go of nothing. What lapsed is given back by whoever comes next. The Redis keys of one API key
carry the same hash tag, so that they live on one node of a cluster.

Rule 1: money that was spent changes only in `SETTLE`, by what a request has used. Rule 2: `SETTLE` with a batch that
was settled before does nothing, so that it can be sent again when no answer came. The tests run these scripts and
`account` through the same histories and compare.
"""

_STATE_TTL_S = 86400 * 2

_PRELUDE = f"""
local UNITS, STATE_TTL = 60000000, {_STATE_TTL_S}
local state, leases = KEYS[1], KEYS[2]
local now, rpm, tpm = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if now == 0 then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local function exact(number) return string.format('%.0f', number) end
local function release(lease)
  local tokens, cost = string.match(lease, ':(%d+):(%d+)$')
  if redis.call('ZREM', leases, lease) == 1 then
    if tokens ~= '0' then redis.call('HINCRBY', state, 'held_tokens', '-' .. tokens) end
    if cost ~= '0' then redis.call('HINCRBY', state, 'held_cost', '-' .. cost) end
  end
end
for _, lease in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', exact(now))) do release(lease) end
local values = redis.call('HMGET', state, 'requests_debt', 'requests_at', 'tokens_debt', 'tokens_at',
  'held_tokens', 'held_cost')
local function debt_of(index, rate)
  local debt, since = tonumber(values[index] or 0), tonumber(values[index + 1] or 0)
  return math.max(0, debt - math.max(0, now - since) * rate), math.max(now, since)
end
local requests_debt, requests_at = debt_of(1, rpm)
local tokens_debt, tokens_at = debt_of(3, tpm)
local held_tokens, held_cost = values[5] or '0', values[6] or '0'
local num_open = redis.call('ZCARD', leases)
"""

_READ_SPENT = """
local spent = {}
for index = 3, #KEYS do spent[index - 2] = redis.call('GET', KEYS[index]) or '0' end
local function levels(is_taken)
  return {is_taken, num_open, held_tokens, held_cost, exact(requests_debt), exact(tokens_debt), unpack(spent)}
end
"""

LEVELS = _PRELUDE + _READ_SPENT + "return levels(0)"
"""KEYS: state, leases, the windows' amounts. ARGV: now in microseconds (0: the server's), requests and tokens a minute
(0: no limit). Returns whether it was taken, open leases, held tokens and cost, both debts, and the amounts."""

TAKE = (
    _PRELUDE
    + _READ_SPENT
    + """
local lease, ttl, tokens, cost = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local concurrency = tonumber(ARGV[8])
if concurrency > 0 and num_open >= concurrency then return levels(0) end
if rpm > 0 and requests_debt + UNITS > rpm * UNITS then return levels(0) end
if tpm > 0 and tokens_debt + (tonumber(held_tokens) + tokens) * UNITS > tpm * UNITS then return levels(0) end
for index = 1, #spent do
  if tonumber(spent[index]) + tonumber(held_cost) + cost > tonumber(ARGV[8 + index]) then return levels(0) end
end
if rpm > 0 then
  redis.call('HSET', state, 'requests_debt', exact(requests_debt + UNITS), 'requests_at', exact(requests_at))
end
redis.call('HINCRBY', state, 'held_tokens', ARGV[6])
redis.call('HINCRBY', state, 'held_cost', ARGV[7])
redis.call('ZADD', leases, exact(now + ttl), lease)
redis.call('EXPIRE', state, STATE_TTL)
redis.call('EXPIRE', leases, STATE_TTL)
return levels(1)
"""
)
"""As LEVELS, and ARGV: lease, its time to live in microseconds, its tokens, its cost, requests at a time (0: no limit),
and the amount of each budget."""

SETTLE = (
    _PRELUDE
    + """
if not redis.call('SET', KEYS[3], 1, 'NX', 'EX', 86400) then return 0 end
local at = 6
for _ = 1, tonumber(ARGV[at]) do at = at + 1; release(ARGV[at]) end
if tpm > 0 then
  redis.call('HSET', state, 'tokens_debt', exact(tokens_debt + tonumber(ARGV[4]) * UNITS),
    'tokens_at', exact(tokens_at))
  redis.call('EXPIRE', state, STATE_TTL)
end
at = at + 1
for _ = 1, tonumber(ARGV[at]) do
  redis.call('HINCRBY', KEYS[4], ARGV[at + 1], ARGV[at + 2])
  at = at + 2
end
for index = 5, #KEYS do
  redis.call('INCRBY', KEYS[index], ARGV[5])
  at = at + 1
  if ARGV[at] ~= '0' then redis.call('EXPIREAT', KEYS[index], ARGV[at]) end
end
return 1
"""
)
"""KEYS: state, leases, the batch's mark, totals, the windows' amounts. ARGV: now, requests and tokens a minute, tokens
used, money spent, the number of leases and each, the number of totals and each with what to add, and for each window
the second since the epoch at which its amount is forgotten (0: never)."""

RENEW = """
local time = redis.call('TIME')
local until_us = tonumber(time[1]) * 1000000 + tonumber(time[2]) + tonumber(ARGV[1])
for index = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', until_us), ARGV[index]) end
return 1
"""
"""KEYS: leases. ARGV: time to live in microseconds, and the leases to keep."""
