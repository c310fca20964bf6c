# What a sound fleet becomes: three small regions, two of them in the EU.

variables {
  domain = "penstock.example.internal"
  regions = [
    {
      name          = "eu-de"
      location      = { country = "DE", latitude_deg = 50.11, longitude_deg = 8.68 }
      jurisdictions = ["DE", "EU"]
      zones         = ["a", "b"]
      pools = [
        { model = "org/Model-1.0", accelerator = "h100", endpoints = 3, slots = 64 },
        { model = "org/Model-1.0", accelerator = "l40s", endpoints = 1, slots = 16, queue = 4, zones = ["b"], port = 8001 },
      ]
      trusted_proxies = ["10.1.0.0/16", "fd00::/8"]
    },
    {
      name          = "eu-es"
      location      = { country = "ES", latitude_deg = 40.42, longitude_deg = -3.7 }
      jurisdictions = ["ES", "EU"]
      zones         = ["a"]
      agents        = 3
      pools         = [{ model = "org/Model-1.0", accelerator = "h100", endpoints = 1, slots = 64 }]
    },
    {
      name          = "jp-tok"
      location      = { country = "JP", city = "Tokyo", latitude_deg = 35.68, longitude_deg = 139.69 }
      jurisdictions = ["JP"]
      zones         = ["a", "b"]
      pools         = []
    },
  ]
  control_planes = [
    { name = "cp-1", region = "eu-de", zone = "a" },
    { name = "cp-2", region = "eu-es", zone = "a" },
  ]
  etcd_members = [
    { name = "etcd-1", region = "eu-de", zone = "a" },
    { name = "etcd-2", region = "eu-de", zone = "b" },
    { name = "etcd-3", region = "eu-es", zone = "a" },
  ]
  residency_blocs = ["EU"]
}

run "agents" {
  command = plan

  assert {
    condition     = { for region, agents in output.agents : region => length(agents) } == { eu-de = 2, eu-es = 3, jp-tok = 2 }
    error_message = "two agents a region unless told otherwise"
  }
  assert {
    condition     = [for agent in output.agents["eu-de"] : agent.zone] == ["a", "b"]
    error_message = "agents are spread over the zones"
  }
  assert {
    condition = output.agents["eu-de"]["agent-2"].environment == {
      PENSTOCK_AGENT_REGION                   = "eu-de"
      PENSTOCK_AGENT_NAME                     = "agent-2"
      PENSTOCK_AGENT_ZONE                     = "b"
      PENSTOCK_AGENT_TRAFFIC_LISTEN           = "0.0.0.0:8080"
      PENSTOCK_AGENT_PEER_LISTEN              = "0.0.0.0:8081"
      PENSTOCK_AGENT_ADMIN_LISTEN             = "agent-2.eu-de.penstock.example.internal:8082"
      PENSTOCK_AGENT_ADVERTISE_PEER_URL       = "https://agent-2.eu-de.penstock.example.internal:8081"
      PENSTOCK_AGENT_CONTROL_PLANE_URLS       = "https://cp-1.eu-de.penstock.example.internal:8090,https://cp-2.eu-es.penstock.example.internal:8090"
      PENSTOCK_AGENT_ETCD_ENDPOINTS           = "etcd-1.eu-de.penstock.example.internal:2379,etcd-2.eu-de.penstock.example.internal:2379,etcd-3.eu-es.penstock.example.internal:2379"
      PENSTOCK_AGENT_REDIS_URL                = "rediss://redis.eu-de.penstock.example.internal:6379/0"
      PENSTOCK_AGENT_REDIS_PASSWORD_FILE      = ""
      PENSTOCK_AGENT_ENDPOINTS_FILE           = "/etc/penstock/endpoints.yaml"
      PENSTOCK_AGENT_GEOIP_FILE               = ""
      PENSTOCK_AGENT_IDENTITY_DIR             = "/run/penstock-identity"
      PENSTOCK_AGENT_STATE_DIR                = "/var/lib/penstock-agent"
      PENSTOCK_AGENT_TRUSTED_PROXIES          = "10.1.0.0/16,fd00::/8"
      PENSTOCK_AGENT_TRAFFIC_CERTIFICATE_FILE = "/run/penstock-identity/tls.crt"
      PENSTOCK_AGENT_TRAFFIC_KEY_FILE         = "/run/penstock-identity/tls.key"
    }
    error_message = "the whole environment of an agent"
  }
}

run "endpoints" {
  command = plan

  assert {
    condition     = yamldecode(output.endpoints_files["eu-de"])[*].name == ["org-model-1-0-h100-1", "org-model-1-0-h100-2", "org-model-1-0-h100-3", "org-model-1-0-l40s-1"]
    error_message = "as many endpoints as asked for, under names that DNS takes"
  }
  assert {
    condition     = yamldecode(output.endpoints_files["eu-de"])[*].zone == ["a", "b", "a", "b"]
    error_message = "a pool spreads over its zones, or the region's"
  }
  assert {
    condition = yamldecode(output.endpoints_files["eu-de"])[3] == {
      name        = "org-model-1-0-l40s-1"
      url         = "http://org-model-1-0-l40s-1.eu-de.penstock.example.internal:8001"
      models      = ["org/Model-1.0"]
      accelerator = "l40s"
      zone        = "b"
      slots       = 16
      queue       = 4
    }
    error_message = "an endpoint as the agent reads it"
  }
  assert {
    condition     = length(yamldecode(output.endpoints_files["jp-tok"])) == 0
    error_message = "a region may be an entry alone"
  }
}

run "control_planes_and_etcd" {
  command = plan

  assert {
    condition = output.control_planes["cp-2"].environment == {
      PENSTOCK_NAME              = "cp-2"
      PENSTOCK_LISTEN            = "0.0.0.0:8090"
      PENSTOCK_ADVERTISE_URL     = "https://cp-2.eu-es.penstock.example.internal:8090"
      PENSTOCK_ETCD_ENDPOINTS    = output.etcd.client_endpoints
      PENSTOCK_POLICY_DIR        = "/etc/penstock/policies"
      PENSTOCK_POLICY_REPOSITORY = ""
      PENSTOCK_IDENTITY_DIR      = "/run/penstock-identity"
      PENSTOCK_ADMIN_TOKEN_FILE  = "/run/penstock-admin-token"
    }
    error_message = "the whole environment of a control plane"
  }
  assert {
    condition     = output.etcd.initial_cluster == "etcd-1=https://etcd-1.eu-de.penstock.example.internal:2380,etcd-2=https://etcd-2.eu-de.penstock.example.internal:2380,etcd-3=https://etcd-3.eu-es.penstock.example.internal:2380"
    error_message = "the same initial cluster for every member"
  }
  assert {
    condition     = output.etcd.quorum == 2 && alltrue([for member in output.etcd.members : member.environment.ETCD_INITIAL_CLUSTER == output.etcd.initial_cluster])
    error_message = "quorum and environment of the members"
  }
  assert {
    condition = alltrue([for member in output.etcd.members : alltrue([
      for name, value in member.environment : startswith(value, "https://") if endswith(name, "_URLS")
    ]) && member.environment.ETCD_CLIENT_CERT_AUTH == "true" && member.environment.ETCD_PEER_CLIENT_CERT_AUTH == "true"])
    error_message = "etcd serves TLS alone, and requires certificates of clients and of members"
  }
}

run "firewall" {
  command = plan

  assert {
    condition = toset([for flow in output.firewall_rules : "${flow.from} ${flow.to} ${flow.port}" if startswith(flow.from, "internet")]) == toset([
      "internet agent@eu-de 8080", "internet agent@eu-es 8080", "internet agent@jp-tok 8080",
    ])
    error_message = "clients reach the traffic face of agents, and nothing else"
  }
  assert {
    condition = alltrue([for flow in output.firewall_rules :
      split("@", flow.from)[1] == split("@", flow.to)[1] && startswith(flow.from, "agent@") if startswith(flow.to, "redis@") || startswith(flow.to, "endpoint@")
    ])
    error_message = "Redis and GPU endpoints are reached by agents of their own region alone"
  }
  assert {
    condition     = length([for flow in output.firewall_rules : flow if startswith(flow.to, "redis@")]) == 3
    error_message = "one Redis a region"
  }
  assert {
    condition     = length([for flow in output.firewall_rules : flow if flow.port == 8081]) == 6 && !contains(keys(output.firewall_rules), "agent@eu-de -> agent@eu-de:8081")
    error_message = "each region's agents reach every other region's, and not their own, on the peer port"
  }
  assert {
    condition     = toset([for flow in output.firewall_rules : split("@", flow.from)[0] if startswith(flow.to, "etcd@") && flow.port == 2379]) == toset(["agent", "control-plane"])
    error_message = "agents and control planes are etcd's only clients"
  }
  assert {
    condition     = toset([for flow in output.firewall_rules : split("@", flow.from)[0] if startswith(flow.to, "control-plane@")]) == toset(["agent", "control-plane", "monitoring", "operators"])
    error_message = "agents, other control planes, monitoring and operators reach a control plane"
  }
  assert {
    condition     = toset([for flow in output.firewall_rules : flow.port if startswith(flow.to, "endpoint@eu-de")]) == toset([8000, 8001])
    error_message = "every port of a region's pools is open to its agents"
  }
}

run "monitoring_and_names" {
  command = plan

  assert {
    condition = { for job in output.prometheus_scrape_configs : job.job_name => length(job.static_configs) } == {
      penstock-agent = 7, penstock-control-plane = 2
    }
    error_message = "every process is scraped"
  }
  assert {
    condition = output.prometheus_scrape_configs[0].static_configs[0] == {
      targets = ["agent-1.eu-de.penstock.example.internal:8082"]
      labels  = { site = "eu-de", agent = "agent-1" }
    }
    error_message = "an agent is scraped at its admin face, with the labels the rules rely on"
  }
  assert {
    condition     = output.dns_names.entries["jp-tok"] == "jp-tok.penstock.example.internal" && length(output.dns_names.endpoints) == 5
    error_message = "every name is listed"
  }
  assert {
    condition = yamldecode(split("---\n", output.policy_regions_file)[2]) == {
      apiVersion         = "penstock/v1"
      kind               = "Region"
      name               = "jp-tok"
      city               = "Tokyo"
      country            = "JP"
      latitude_deg       = 35.68
      longitude_deg      = 139.69
      cost_per_gpu_hour  = 1
      egress_cost_per_gb = 0
    }
    error_message = "regions as policy needs them"
  }
}

run "other_ports" {
  command = plan

  variables {
    ports = { agent_traffic = 443, agent_peer = 9443 }
  }

  assert {
    condition     = output.agents["eu-es"]["agent-3"].environment.PENSTOCK_AGENT_TRAFFIC_LISTEN == "0.0.0.0:443" && contains(keys(output.firewall_rules), "internet -> agent@eu-es:443") && contains(keys(output.firewall_rules), "agent@eu-es -> agent@eu-de:9443")
    error_message = "a port is changed in one place"
  }
}

run "other_places" {
  command = plan

  variables {
    policy_repository = "https://git.example.net/policies.git"
    redis_hosts       = { eu-de = "primary.cache.example.net" }
    paths             = { traffic_certificate_file = "/tls/site.crt", traffic_key_file = "/tls/site.key", redis_password_file = "/run/redis" }
  }

  assert {
    condition     = output.control_planes["cp-1"].environment.PENSTOCK_POLICY_DIR == "" && output.control_planes["cp-1"].environment.PENSTOCK_POLICY_REPOSITORY == "https://git.example.net/policies.git"
    error_message = "the policy is in a repository or in a directory"
  }
  assert {
    condition     = output.agents["eu-de"]["agent-1"].environment.PENSTOCK_AGENT_REDIS_URL == "rediss://primary.cache.example.net:6379/0" && output.dns_names.redis["eu-es"] == "redis.eu-es.penstock.example.internal"
    error_message = "a Redis may have a name of its own"
  }
  assert {
    condition     = output.agents["eu-es"]["agent-1"].environment.PENSTOCK_AGENT_TRAFFIC_KEY_FILE == "/tls/site.key"
    error_message = "clients may see another certificate"
  }
}

run "risks_accepted" {
  command = plan

  variables {
    regions = [{
      name          = "solo"
      location      = { country = "SE", latitude_deg = 59, longitude_deg = 18 }
      jurisdictions = ["SE"]
      zones         = ["a", "b"]
      agents        = 1
      pools         = []
    }]
    control_planes  = [{ name = "cp-1", region = "solo", zone = "a" }, { name = "cp-2", region = "solo", zone = "b" }]
    etcd_members    = [{ name = "etcd-1", region = "solo", zone = "a" }]
    residency_blocs = []
    accepted_risks  = { single_agent_regions = ["solo"], etcd_not_redundant = true }
  }

  assert {
    condition     = length(output.agents["solo"]) == 1 && output.etcd.quorum == 1
    error_message = "a risk that is accepted by name is allowed"
  }
}
