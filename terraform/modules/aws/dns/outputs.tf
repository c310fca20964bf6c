output "health_check_ids" {
  description = "ID of the health check of each region's entry."
  value       = { for region, check in aws_route53_health_check.entry : region => check.id }
}
