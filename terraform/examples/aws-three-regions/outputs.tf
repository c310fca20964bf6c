output "topics" {
  description = "Topics of the alarms of each region; subscribe a pager to them."
  value       = { eu-de = module.frankfurt.topic_arn, eu-ie = module.ireland.topic_arn, us-east = module.virginia.topic_arn }
}

output "identities" {
  description = "Secrets that an operator fills with the identities that `penstock certs issue` makes."
  value       = { eu-de = module.frankfurt.identity_arns, eu-ie = module.ireland.identity_arns, us-east = module.virginia.identity_arns }
}

output "endpoint_security_groups" {
  description = "Security groups for the GPU machines of each region."
  value = {
    eu-de   = module.frankfurt.endpoint_security_group_id
    eu-ie   = module.ireland.endpoint_security_group_id
    us-east = module.virginia.endpoint_security_group_id
  }
}

output "policy_regions_file" {
  description = "Text of the policy file that declares the regions."
  value       = module.topology.policy_regions_file
}

output "dns_health_checks" {
  description = "Health check of each region's entry."
  value       = module.dns.health_check_ids
}
