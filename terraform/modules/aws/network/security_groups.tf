# The topology's firewall rules as security groups: one for each role. What is not listed is denied, in both directions.

locals {
  roles  = toset(["agent", "control-plane", "etcd", "redis", "endpoint", "monitoring"])
  groups = merge({ for role, group in aws_security_group.role : role => group.id }, { load-balancer = aws_security_group.load_balancer.id })
}

resource "aws_security_group" "role" {
  #checkov:skip=CKV2_AWS_5:Other modules, and GPU machines, use these groups by ID.
  for_each = local.roles

  name_prefix = "penstock-${var.region}-${each.key}-"
  description = "Penstock: ${each.key} in ${var.region}, by the rules of the topology"
  vpc_id      = aws_vpc.this.id

  tags = { Name = "penstock-${var.region}-${each.key}" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_security_group" "load_balancer" {
  #checkov:skip=CKV2_AWS_5:The module agents uses this group by ID.
  name_prefix = "penstock-${var.region}-load-balancer-"
  description = "Penstock: clients to the load balancer of ${var.region}, and from it to the agents"
  vpc_id      = aws_vpc.this.id

  tags = { Name = "penstock-${var.region}-load-balancer" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each = toset(var.client_cidrs)

  security_group_id = aws_security_group.load_balancer.id
  description       = "requests of clients"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = each.key
}

resource "aws_vpc_security_group_egress_rule" "load_balancer" {
  for_each = module.rules.traffic_ports

  security_group_id            = aws_security_group.load_balancer.id
  description                  = "requests of clients, and health checks"
  ip_protocol                  = "tcp"
  from_port                    = tonumber(each.key)
  to_port                      = tonumber(each.key)
  referenced_security_group_id = aws_security_group.role["agent"].id
}

resource "aws_vpc_security_group_ingress_rule" "topology" {
  for_each = module.rules.ingress

  security_group_id            = aws_security_group.role[each.value.role].id
  description                  = each.value.why
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
  cidr_ipv4                    = each.value.cidr
  referenced_security_group_id = each.value.source_role == null ? null : local.groups[each.value.source_role]
}

resource "aws_vpc_security_group_egress_rule" "topology" {
  for_each = module.rules.egress

  security_group_id            = aws_security_group.role[each.value.role].id
  description                  = each.value.why
  ip_protocol                  = "tcp"
  from_port                    = each.value.port
  to_port                      = each.value.port
  cidr_ipv4                    = each.value.cidr
  referenced_security_group_id = each.value.target_role == null ? null : local.groups[each.value.target_role]
}

# Prometheus scrapes the fleet of every region.
resource "aws_vpc_security_group_egress_rule" "monitoring" {
  for_each = module.rules.scrapes

  security_group_id = aws_security_group.role["monitoring"].id
  description       = "metrics"
  ip_protocol       = "tcp"
  from_port         = each.value.port
  to_port           = each.value.port
  cidr_ipv4         = each.value.cidr
}

# git, packages, and the services of AWS.
resource "aws_vpc_security_group_egress_rule" "https" {
  for_each = setsubtract(local.roles, ["redis", "endpoint"])

  security_group_id = aws_security_group.role[each.key].id
  description       = "policy repository, packages, and AWS services"
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
  cidr_ipv4         = "0.0.0.0/0"
}
