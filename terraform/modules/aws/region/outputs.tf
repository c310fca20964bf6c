output "peering" {
  description = "What the peering module needs of this region, except for the AWS region."
  value = {
    name            = var.region
    vpc_id          = module.network.vpc_id
    cidr            = var.region_cidrs[var.region]
    route_table_ids = module.network.route_table_ids
  }
}

output "load_balancer" {
  description = "DNS name and zone ID of the load balancer."
  value       = module.load_balancer.load_balancer
}

output "redis_host" {
  description = "Name of the region's Redis, for `redis_hosts` of the topology."
  value       = module.redis.host
}

output "topic_arn" {
  description = "ARN of the topic of the region's alarms."
  value       = module.monitoring.topic_arn
}

output "identity_arns" {
  description = "ARN of the secret with the identity of each process, for the operator that fills it."
  value       = module.secrets.identity_arns
}

output "endpoint_security_group_id" {
  description = "Security group for GPU machines: it admits the agents of the region to the ports of the pools."
  value       = module.network.security_group_ids["endpoint"]
}
