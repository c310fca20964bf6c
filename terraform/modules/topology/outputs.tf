output "agents" {
  description = "Per region and agent: its host and zone, and the environment to start penstock-agent with."
  value = {
    for region in keys(local.region) : region => {
      for key, agent in local.agents : agent.name => {
        host        = agent.host
        zone        = agent.zone
        environment = local.agent_environment[key]
      } if agent.region == region
    }
  }
}

output "endpoints_files" {
  description = "Per region: the text of the file at PENSTOCK_AGENT_ENDPOINTS_FILE, its GPU endpoints, in YAML."
  value = {
    for region in keys(local.region) : region => yamlencode([
      for endpoint in local.endpoints : {
        name        = endpoint.name
        url         = "${endpoint.scheme}://${endpoint.host}:${endpoint.port}"
        models      = [endpoint.model]
        accelerator = endpoint.accelerator
        zone        = endpoint.zone
        slots       = endpoint.slots
        queue       = endpoint.queue
      } if endpoint.region == region
    ])
  }

  precondition {
    condition     = length(distinct([for pool in local.pools : "${pool.region}/${pool.name}"])) == length(local.pools)
    error_message = "regions: two pools of one region have the same model and accelerator, or names that DNS cannot tell apart; put the endpoints of both into one pool."
  }
}

output "control_planes" {
  description = "Per control plane: its host, region and zone, and the environment to start penstock serve with."
  value = {
    for name, seat in local.control_planes : name => {
      host        = seat.host
      region      = seat.region
      zone        = seat.zone
      environment = local.control_plane_environment[name]
    }
  }
}

output "etcd" {
  description = "The cluster: the initial-cluster string, what clients are given, and per member its host, place and environment."
  value = {
    initial_cluster  = local.etcd_initial_cluster
    client_endpoints = local.etcd_endpoints
    quorum           = floor(length(var.etcd_members) / 2) + 1
    members = {
      for name, member in local.etcd_members : name => {
        host        = member.host
        region      = member.region
        zone        = member.zone
        environment = local.etcd_environment[name]
      }
    }
  }
}

output "firewall_rules" {
  description = "Who may open a TCP connection to whom, by a stable key; everything else is denied."
  value       = { for flow in local.firewall_flows : "${flow.from} -> ${flow.to}:${flow.port}" => flow }
}

output "dns_names" {
  description = "Every name: entry points (clients go to these), agents, control planes, etcd members, Redis, GPU endpoints."
  value = {
    entries        = local.entry_hosts
    agents         = { for key, agent in local.agents : key => agent.host }
    control_planes = { for name, seat in local.control_planes : name => seat.host }
    etcd           = { for name, member in local.etcd_members : name => member.host }
    redis          = local.redis_hosts
    endpoints      = { for key, endpoint in local.endpoints : key => endpoint.host }
  }
}

output "prometheus_scrape_configs" {
  description = "Value of scrape_configs in prometheus.yml, with the labels that the rules and dashboards rely on."
  value = [
    {
      job_name   = "penstock-agent"
      scheme     = "https"
      tls_config = local.scrape_tls
      static_configs = [
        for agent in local.agents : {
          targets = ["${agent.host}:${var.ports.agent_admin}"]
          labels  = { site = agent.region, agent = agent.name }
        }
      ]
    },
    {
      job_name   = "penstock-control-plane"
      scheme     = "https"
      tls_config = local.scrape_tls
      static_configs = [
        for name, seat in local.control_planes : {
          targets = ["${seat.host}:${var.ports.control_plane}"]
          labels  = { site = seat.region, control_plane = name }
        }
      ]
    },
  ]
}

locals {
  # Prometheus identifies itself with a certificate of the role monitor (`penstock certs issue monitor`).
  scrape_tls = {
    ca_file   = "${var.paths.identity_dir}/ca.crt"
    cert_file = "${var.paths.identity_dir}/tls.crt"
    key_file  = "${var.paths.identity_dir}/tls.key"
  }
}

output "policy_regions_file" {
  description = "The text of a policy file that declares the regions, in YAML; blocs, models and rules are the bundle's own."
  value = join("---\n", [
    for name, region in local.region : yamlencode({
      apiVersion         = "penstock/v1"
      kind               = "Region"
      name               = name
      city               = region.location.city
      country            = region.location.country
      latitude_deg       = region.location.latitude_deg
      longitude_deg      = region.location.longitude_deg
      cost_per_gpu_hour  = region.cost_per_gpu_hour
      egress_cost_per_gb = region.egress_cost_per_gb
    })
  ])
}

output "ports" {
  description = "The TCP ports, with defaults."
  value       = var.ports
}

output "paths" {
  description = "Where files are on the machines, with defaults."
  value       = var.paths
}
