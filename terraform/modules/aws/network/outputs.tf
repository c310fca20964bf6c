output "vpc_id" {
  description = "ID of the VPC."
  value       = aws_vpc.this.id
}

output "subnet_ids" {
  description = "IDs of subnets, by role (agent, core, redis, public, endpoint, monitoring) and zone."
  value = {
    for role in distinct(values(module.rules.subnets)[*].role) : role => { for zone in var.zones : zone => aws_subnet.this["${role}/${zone}"].id }
  }
}

output "security_group_ids" {
  description = "IDs of security groups by role; give `endpoint` to GPU machines."
  value       = local.groups
}

output "route_table_ids" {
  description = "IDs of the private route tables by zone, for routes to other regions."
  value       = { for zone, table in aws_route_table.private : zone => table.id }
}
