# Who there is, and what DNS calls it.

locals {
  region = { for region in var.regions : region.name => region }

  agents = merge([
    for region in var.regions : {
      for number in range(1, region.agents + 1) : "${region.name}/agent-${number}" => {
        name   = "agent-${number}"
        region = region.name
        zone   = region.zones[(number - 1) % length(region.zones)]
        host   = "agent-${number}.${region.name}.${var.domain}"
      }
    }
  ]...)

  control_planes = {
    for seat in var.control_planes : seat.name => merge(seat, { host = "${seat.name}.${seat.region}.${var.domain}" })
  }

  etcd_members = {
    for member in var.etcd_members : member.name => merge(member, { host = "${member.name}.${member.region}.${var.domain}" })
  }

  redis_hosts = { for name in keys(local.region) : name => lookup(var.redis_hosts, name, "redis.${name}.${var.domain}") }
  entry_hosts = { for name in keys(local.region) : name => "${name}.${var.domain}" }

  pools = flatten([
    for region in var.regions : [
      for pool in region.pools : merge(pool, {
        name   = replace(lower("${pool.model}-${pool.accelerator}"), "/[^a-z0-9]+/", "-")
        region = region.name
        zones  = coalesce(pool.zones, region.zones)
      })
    ]
  ])

  endpoints = merge([
    for pool in local.pools : {
      for number in range(1, pool.endpoints + 1) : "${pool.region}/${pool.name}-${number}" => {
        name        = "${pool.name}-${number}"
        region      = pool.region
        zone        = pool.zones[(number - 1) % length(pool.zones)]
        model       = pool.model
        accelerator = pool.accelerator
        slots       = pool.slots
        queue       = pool.queue
        host        = "${pool.name}-${number}.${pool.region}.${var.domain}"
        port        = pool.port
        scheme      = pool.tls ? "https" : "http"
      }
    }
  ]...)
}
