output "subnets" {
  description = "Role, zone and CIDR of each subnet, by role/zone."
  value       = local.subnets
}

output "ingress" {
  description = "What each role of this region admits: from a role here (source_role), or from a network (cidr)."
  value = merge(flatten([
    for key, rule in var.firewall_rules : [
      { for role in compact([local.peers[rule.from].role]) : "${key} (group)" => {
        role = split("@", rule.to)[0], port = rule.port, why = rule.why, source_role = role, cidr = null
      } },
      { for cidr in local.peers[rule.from].cidrs : "${key} (${cidr})" => {
        role = split("@", rule.to)[0], port = rule.port, why = rule.why, source_role = null, cidr = cidr
      } },
    ] if endswith(rule.to, "@${var.region}")
  ])...)
}

output "egress" {
  description = "What each role of this region may connect to: a role here (target_role), or a network (cidr)."
  value = merge(flatten([
    for key, rule in var.firewall_rules : [
      { for role in compact([local.peers[rule.to].role]) : "${key} (group)" => {
        role = split("@", rule.from)[0], port = rule.port, why = rule.why, target_role = role, cidr = null
      } },
      { for cidr in local.peers[rule.to].cidrs : "${key} (${cidr})" => {
        role = split("@", rule.from)[0], port = rule.port, why = rule.why, target_role = null, cidr = cidr
      } },
    ] if endswith(rule.from, "@${var.region}")
  ])...)
}

output "traffic_ports" {
  description = "Ports at which the load balancer reaches the agents."
  value       = toset([for rule in var.firewall_rules : tostring(rule.port) if rule.from == "internet" && rule.to == "agent@${var.region}"])
}

output "scrapes" {
  description = "What Prometheus may connect to: the ports with metrics, in every region."
  value = { for pair in setproduct(
    distinct([for rule in var.firewall_rules : rule.port if rule.from == "monitoring"]), values(var.region_cidrs)
  ) : "${pair[1]}:${pair[0]}" => { port = pair[0], cidr = pair[1] } }
}
