"""The one script that agents of a region run in their Redis: say mine, hear everybody's, in one round trip.

State is whole, not increments: an agent writes all of its counts each time, under a lease. So a write that is lost,
repeated, or follows a flush or a restart does no harm, and a killed agent's counts go when its lease does. A higher
epoch replaces a lower one of the same name: an agent that comes back is not counted twice. The lower, where it still
lives because it finishes what it has, is told so and goes on under a name of its own. A lease that ends later than any
can was written before Redis's clock was set back, or by another Redis before a failover: whoever lives writes anew.

Keys share a hash tag, so they lie on one node of a cluster:
    penstock:v1:{<region>}:agents         sorted set: agent name -> end of its lease (ms, Redis's clock)
    penstock:v1:{<region>}:agent:<name>   hash: epoch, told (JSON: see shared_load.Told)
"""

from __future__ import annotations

MAX_AGENTS = 256
"""Agents of one region whose counts are read."""

MAX_TOLD_BYTES = 1 << 20
"""What one agent tells takes no more: 4096 endpoints take half of it. It is read on the event loop."""

EXCHANGE = """
local index, mine = KEYS[1], KEYS[2]
local name, epoch, lease_ms, told, prefix, most, largest = unpack(ARGV)
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local held = tonumber(redis.call('HGET', mine, 'epoch') or '0')
local current = held <= tonumber(epoch)
lease_ms = tonumber(lease_ms)

if current and lease_ms > 0 then
  redis.call('HSET', mine, 'epoch', epoch, 'told', told)
  redis.call('PEXPIRE', mine, lease_ms)
  redis.call('ZADD', index, now_ms + lease_ms, name)
  redis.call('PEXPIRE', index, lease_ms)
elseif current then
  redis.call('DEL', mine)
  redis.call('ZREM', index, name)
end

redis.call('ZREMRANGEBYSCORE', index, '-inf', '(' .. now_ms)
if lease_ms > 0 then
  redis.call('ZREMRANGEBYSCORE', index, '(' .. now_ms + 2 * lease_ms, '+inf')
end
local answer = {current and 1 or 0}
for _, other in ipairs(redis.call('ZRANGE', index, 0, most - 1)) do
  if other ~= name or not current then
    local said = redis.call('HGET', prefix .. other, 'told')
    if said then
      answer[#answer + 1] = #said <= tonumber(largest) and said or ''
    end
  end
end
return answer
"""
"""KEYS: index, mine. ARGV: name, epoch, lease in ms (0 leaves), what it tells, prefix of agents' keys, most agents,
most bytes that one may tell.

Returns 1 where `epoch` is the newest of `name` else 0, then what each other agent tells; nothing of what is too large.
"""


def index_key(region: str) -> str:
    """The set of a region's agents."""
    return f"penstock:v1:{{{region}}}:agents"


def agent_prefix(region: str) -> str:
    """What the keys of a region's agents begin with."""
    return f"penstock:v1:{{{region}}}:agent:"
