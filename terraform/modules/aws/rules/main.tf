# From the topology's firewall rules to subnets and the rules of security groups; computes, and makes nothing. A role's
# subnets lie in one range of each region, so that the role of another region can be admitted by its addresses: security
# groups cannot be named across regions.

locals {
  role_ranges = { agent = 0, control-plane = 1, etcd = 1, redis = 2, public = 3, endpoint = 4, monitoring = 5 }
  range_roles = { agent = 0, core = 1, redis = 2, public = 3, endpoint = 4, monitoring = 5 }

  subnets = merge([
    for role, range in local.range_roles : {
      for number, zone in var.zones : "${role}/${zone}" => {
        role = role
        zone = zone
        cidr = cidrsubnet(cidrsubnet(var.region_cidrs[var.region], 4, range), 4, number)
      }
    }
  ]...)

  # Where each peer of a rule is, as seen from this region: a role here, or networks.
  peers = { for peer in distinct(flatten([for rule in var.firewall_rules : [rule.from, rule.to]])) : peer => {
    role = endswith(peer, "@${var.region}") ? split("@", peer)[0] : peer == "internet" ? "load-balancer" : null
    cidrs = (
      endswith(peer, "@${var.region}") || peer == "internet" ? [] :
      peer == "monitoring" ? var.monitoring_cidrs :
      peer == "operators" ? var.operator_cidrs :
      [cidrsubnet(var.region_cidrs[split("@", peer)[1]], 4, local.role_ranges[split("@", peer)[0]])]
    )
  } }
}
