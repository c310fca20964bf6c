# The environment of each process. A list is written with commas.

locals {
  etcd_endpoints = join(",", [for member in var.etcd_members : "${local.etcd_members[member.name].host}:${var.ports.etcd_client}"])

  control_plane_urls = { for name, seat in local.control_planes : name => "http://${seat.host}:${var.ports.control_plane}" }

  agent_environment = {
    for key, agent in local.agents : key => {
      PENSTOCK_AGENT_REGION             = agent.region
      PENSTOCK_AGENT_NAME               = agent.name
      PENSTOCK_AGENT_ZONE               = agent.zone
      PENSTOCK_AGENT_TRAFFIC_LISTEN     = "0.0.0.0:${var.ports.agent_traffic}"
      PENSTOCK_AGENT_PEER_LISTEN        = "0.0.0.0:${var.ports.agent_peer}"
      PENSTOCK_AGENT_ADMIN_LISTEN       = "${agent.host}:${var.ports.agent_admin}"
      PENSTOCK_AGENT_ADVERTISE_PEER_URL = "https://${agent.host}:${var.ports.agent_peer}"
      PENSTOCK_AGENT_CONTROL_PLANE_URLS = join(",", [for seat in var.control_planes : local.control_plane_urls[seat.name]])
      PENSTOCK_AGENT_ETCD_ENDPOINTS     = local.etcd_endpoints
      PENSTOCK_AGENT_REDIS_URL          = "redis://${local.redis_hosts[agent.region]}:${var.ports.redis}/0"
      PENSTOCK_AGENT_ENDPOINTS_FILE     = var.paths.endpoints_file
      PENSTOCK_AGENT_GEOIP_FILE         = var.paths.geoip_file
      PENSTOCK_AGENT_IDENTITY_DIR       = var.paths.identity_dir
      PENSTOCK_AGENT_STATE_DIR          = var.paths.state_dir
      PENSTOCK_AGENT_TRUSTED_PROXIES    = join(",", local.region[agent.region].trusted_proxies)
    }
  }

  control_plane_environment = {
    for name, seat in local.control_planes : name => {
      PENSTOCK_NAME             = name
      PENSTOCK_LISTEN           = "0.0.0.0:${var.ports.control_plane}"
      PENSTOCK_ADVERTISE_URL    = local.control_plane_urls[name]
      PENSTOCK_ETCD_ENDPOINTS   = local.etcd_endpoints
      PENSTOCK_POLICY_DIR       = var.paths.policy_dir
      PENSTOCK_IDENTITY_DIR     = var.paths.identity_dir
      PENSTOCK_ADMIN_TOKEN_FILE = var.paths.admin_token_file
    }
  }

  etcd_initial_cluster = join(",", [
    for member in var.etcd_members : "${member.name}=http://${local.etcd_members[member.name].host}:${var.ports.etcd_peer}"
  ])

  etcd_environment = {
    for name, member in local.etcd_members : name => {
      ETCD_NAME                        = name
      ETCD_INITIAL_CLUSTER             = local.etcd_initial_cluster
      ETCD_INITIAL_CLUSTER_STATE       = "new"
      ETCD_INITIAL_CLUSTER_TOKEN       = var.domain
      ETCD_LISTEN_PEER_URLS            = "http://0.0.0.0:${var.ports.etcd_peer}"
      ETCD_LISTEN_CLIENT_URLS          = "http://0.0.0.0:${var.ports.etcd_client}"
      ETCD_INITIAL_ADVERTISE_PEER_URLS = "http://${member.host}:${var.ports.etcd_peer}"
      ETCD_ADVERTISE_CLIENT_URLS       = "http://${member.host}:${var.ports.etcd_client}"
      ETCD_AUTO_COMPACTION_MODE        = "periodic"
      ETCD_AUTO_COMPACTION_RETENTION   = "1h"
    }
  }
}
