output "host" {
  description = "Name of the primary, which its certificate contains: an alias of one's own would not match."
  value       = aws_elasticache_replication_group.this.primary_endpoint_address
}
