# The environment of each process. A list is written with commas; an empty value is as good as none. Every connection
# between machines uses TLS with the certificates of the fleet's authority: Penstock's by default, etcd's by what is here.

locals {
  etcd_endpoints = join(",", [for member in var.etcd_members : "${local.etcd_members[member.name].host}:${var.ports.etcd_client}"])

  # The listener for clients has the agent's certificate, for a load balancer that encrypts again, unless it has its own.
  traffic_files = {
    certificate = coalesce(var.paths.traffic_certificate_file, "${var.paths.identity_dir}/tls.crt")
    key         = coalesce(var.paths.traffic_key_file, "${var.paths.identity_dir}/tls.key")
  }

  control_plane_urls = { for name, seat in local.control_planes : name => "https://${seat.host}:${var.ports.control_plane}" }

  agent_environment = {
    for key, agent in local.agents : key => {
      PENSTOCK_AGENT_REGION                   = agent.region
      PENSTOCK_AGENT_NAME                     = agent.name
      PENSTOCK_AGENT_ZONE                     = agent.zone
      PENSTOCK_AGENT_TRAFFIC_LISTEN           = "0.0.0.0:${var.ports.agent_traffic}"
      PENSTOCK_AGENT_PEER_LISTEN              = "0.0.0.0:${var.ports.agent_peer}"
      PENSTOCK_AGENT_ADMIN_LISTEN             = "${agent.host}:${var.ports.agent_admin}"
      PENSTOCK_AGENT_ADVERTISE_PEER_URL       = "https://${agent.host}:${var.ports.agent_peer}"
      PENSTOCK_AGENT_CONTROL_PLANE_URLS       = join(",", [for seat in var.control_planes : local.control_plane_urls[seat.name]])
      PENSTOCK_AGENT_ETCD_ENDPOINTS           = local.etcd_endpoints
      PENSTOCK_AGENT_REDIS_URL                = "rediss://${local.redis_hosts[agent.region]}:${var.ports.redis}/0"
      PENSTOCK_AGENT_REDIS_PASSWORD_FILE      = var.paths.redis_password_file
      PENSTOCK_AGENT_ENDPOINTS_FILE           = var.paths.endpoints_file
      PENSTOCK_AGENT_GEOIP_FILE               = var.paths.geoip_file
      PENSTOCK_AGENT_IDENTITY_DIR             = var.paths.identity_dir
      PENSTOCK_AGENT_STATE_DIR                = var.paths.state_dir
      PENSTOCK_AGENT_TRUSTED_PROXIES          = join(",", local.region[agent.region].trusted_proxies)
      PENSTOCK_AGENT_TRAFFIC_CERTIFICATE_FILE = local.traffic_files.certificate
      PENSTOCK_AGENT_TRAFFIC_KEY_FILE         = local.traffic_files.key
    }
  }

  control_plane_environment = {
    for name, seat in local.control_planes : name => {
      PENSTOCK_NAME              = name
      PENSTOCK_LISTEN            = "0.0.0.0:${var.ports.control_plane}"
      PENSTOCK_ADVERTISE_URL     = local.control_plane_urls[name]
      PENSTOCK_ETCD_ENDPOINTS    = local.etcd_endpoints
      PENSTOCK_POLICY_DIR        = var.policy_repository == "" ? var.paths.policy_dir : ""
      PENSTOCK_POLICY_REPOSITORY = var.policy_repository
      PENSTOCK_IDENTITY_DIR      = var.paths.identity_dir
      PENSTOCK_ADMIN_TOKEN_FILE  = var.paths.admin_token_file
    }
  }

  etcd_initial_cluster = join(",", [
    for member in var.etcd_members : "${member.name}=https://${local.etcd_members[member.name].host}:${var.ports.etcd_peer}"
  ])

  etcd_environment = {
    for name, member in local.etcd_members : name => {
      ETCD_NAME                        = name
      ETCD_INITIAL_CLUSTER             = local.etcd_initial_cluster
      ETCD_INITIAL_CLUSTER_STATE       = "new"
      ETCD_INITIAL_CLUSTER_TOKEN       = var.domain
      ETCD_LISTEN_PEER_URLS            = "https://0.0.0.0:${var.ports.etcd_peer}"
      ETCD_LISTEN_CLIENT_URLS          = "https://0.0.0.0:${var.ports.etcd_client}"
      ETCD_INITIAL_ADVERTISE_PEER_URLS = "https://${member.host}:${var.ports.etcd_peer}"
      ETCD_ADVERTISE_CLIENT_URLS       = "https://${member.host}:${var.ports.etcd_client}"
      ETCD_DATA_DIR                    = var.paths.etcd_data_dir
      ETCD_CERT_FILE                   = "${var.paths.identity_dir}/tls.crt"
      ETCD_KEY_FILE                    = "${var.paths.identity_dir}/tls.key"
      ETCD_TRUSTED_CA_FILE             = "${var.paths.identity_dir}/ca.crt"
      ETCD_CLIENT_CERT_AUTH            = "true"
      ETCD_PEER_CERT_FILE              = "${var.paths.identity_dir}/tls.crt"
      ETCD_PEER_KEY_FILE               = "${var.paths.identity_dir}/tls.key"
      ETCD_PEER_TRUSTED_CA_FILE        = "${var.paths.identity_dir}/ca.crt"
      ETCD_PEER_CLIENT_CERT_AUTH       = "true"
      ETCD_AUTO_COMPACTION_MODE        = "periodic"
      ETCD_AUTO_COMPACTION_RETENTION   = "1h"
    }
  }
}
