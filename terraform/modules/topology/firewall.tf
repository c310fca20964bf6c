# Who may open a connection to whom. What is not listed is denied.
# A peer is "role@region"; `internet` is any client, `monitoring` and `operators` are wherever those run. `why` is also the
# description of the rule in a cloud.

locals {
  control_plane_regions = distinct(var.control_planes[*].region)
  etcd_regions          = distinct(var.etcd_members[*].region)
  region_names          = var.regions[*].name

  firewall_flows = concat(
    [for region in local.region_names : {
      from = "internet", to = "agent@${region}", port = var.ports.agent_traffic, why = "requests of clients"
    }],
    flatten([for origin in local.region_names : [for server in local.region_names : {
      from = "agent@${origin}", to = "agent@${server}", port = var.ports.agent_peer, why = "probes and forwarded requests"
    } if origin != server]]),
    flatten([for origin in local.region_names : [for seat in local.control_plane_regions : {
      from = "agent@${origin}", to = "control-plane@${seat}", port = var.ports.control_plane, why = "reports"
    }]]),
    flatten([for follower in local.control_plane_regions : [for leader in local.control_plane_regions : {
      from = "control-plane@${follower}", to = "control-plane@${leader}", port = var.ports.control_plane, why = "requests forwarded to the leader"
    }]]),
    flatten([for origin in local.region_names : [for member in local.etcd_regions : {
      from = "agent@${origin}", to = "etcd@${member}", port = var.ports.etcd_client, why = "policy, plan, registration"
    }]]),
    flatten([for seat in local.control_plane_regions : [for member in local.etcd_regions : {
      from = "control-plane@${seat}", to = "etcd@${member}", port = var.ports.etcd_client, why = "leadership, publishing"
    }]]),
    flatten([for one in local.etcd_regions : [for other in local.etcd_regions : {
      from = "etcd@${one}", to = "etcd@${other}", port = var.ports.etcd_peer, why = "consensus"
    }]]),
    [for region in local.region_names : {
      from = "agent@${region}", to = "redis@${region}", port = var.ports.redis, why = "work in flight of the agents"
    }],
    flatten([for region in var.regions : [for port in distinct(region.pools[*].port) : {
      from = "agent@${region.name}", to = "endpoint@${region.name}", port = port, why = "inference"
    }]]),
    [for region in local.region_names : {
      from = "monitoring", to = "agent@${region}", port = var.ports.agent_admin, why = "metrics and status"
    }],
    [for seat in local.control_plane_regions : {
      from = "monitoring", to = "control-plane@${seat}", port = var.ports.control_plane, why = "metrics and status"
    }],
    [for region in local.region_names : {
      from = "operators", to = "agent@${region}", port = var.ports.agent_admin, why = "explanations and status"
    }],
    [for seat in local.control_plane_regions : {
      from = "operators", to = "control-plane@${seat}", port = var.ports.control_plane, why = "the admin API"
    }],
  )
}
