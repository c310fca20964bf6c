# Two regions, of which one is looked at.

variables {
  region           = "eu-de"
  region_cidrs     = { eu-de = "10.10.0.0/16", us-east = "10.30.0.0/16" }
  zones            = ["a", "b"]
  monitoring_cidrs = ["10.10.80.0/20"]
  operator_cidrs   = ["192.0.2.0/24"]
  firewall_rules = {
    clients  = { from = "internet", to = "agent@eu-de", port = 8080, why = "requests" }
    peers    = { from = "agent@us-east", to = "agent@eu-de", port = 8081, why = "peers" }
    to_peers = { from = "agent@eu-de", to = "agent@us-east", port = 8081, why = "peers" }
    redis    = { from = "agent@eu-de", to = "redis@eu-de", port = 6379, why = "load" }
    scrape   = { from = "monitoring", to = "agent@eu-de", port = 8082, why = "metrics" }
    admin    = { from = "operators", to = "control-plane@eu-de", port = 8090, why = "admin" }
    far      = { from = "agent@us-east", to = "redis@us-east", port = 6379, why = "not here" }
  }
}

run "admits_what_the_topology_lists" {
  command = plan

  assert {
    condition = toset([for rule in output.ingress : "${rule.role} ${rule.port} ${rule.source_role == null ? rule.cidr : rule.source_role}"]) == toset([
      "agent 8080 load-balancer", "agent 8081 10.30.0.0/20", "redis 6379 agent", "agent 8082 10.10.80.0/20", "control-plane 8090 192.0.2.0/24",
    ])
    error_message = "ingress by role here, and by the addresses of the role elsewhere"
  }
  assert {
    condition = toset([for rule in output.egress : "${rule.role} ${rule.port} ${rule.target_role == null ? rule.cidr : rule.target_role}"]) == toset([
      "agent 8081 10.30.0.0/20", "agent 6379 redis",
    ])
    error_message = "egress likewise"
  }
  assert {
    condition     = output.traffic_ports == toset(["8080"]) && keys(output.scrapes) == ["10.10.0.0/16:8082", "10.30.0.0/16:8082"]
    error_message = "ports of the load balancer and of Prometheus"
  }
  assert {
    condition     = length(output.subnets) == 12 && length(distinct(values(output.subnets)[*].cidr)) == 12 && output.subnets["monitoring/a"].cidr == "10.10.80.0/24"
    error_message = "a subnet for each role and zone"
  }
}

run "operators_are_not_the_internet" {
  command = plan

  variables {
    operator_cidrs = ["0.0.0.0/0"]
  }

  expect_failures = [var.operator_cidrs]
}

run "one_zone_is_not_enough" {
  command = plan

  variables {
    zones = ["a"]
  }

  expect_failures = [var.zones]
}
