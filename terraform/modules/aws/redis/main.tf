# The region's shared view of work in flight. Agents serve without it, each by its own view, so two nodes are enough.

resource "aws_elasticache_subnet_group" "this" {
  name       = "penstock-${var.region}"
  subnet_ids = var.subnet_ids
}

resource "aws_elasticache_replication_group" "this" {
  #checkov:skip=CKV_AWS_31:A token would be in Terraform's state. Security groups admit the region's agents alone, and what agents write is authenticated with the region's key; set a token outside of Terraform, see terraform/README.md.
  replication_group_id       = "penstock-${var.region}"
  description                = "Work in flight of the agents of ${var.region}"
  engine                     = "valkey"
  engine_version             = "7.2"
  node_type                  = var.node_type
  port                       = var.port
  num_cache_clusters         = 2
  automatic_failover_enabled = true
  multi_az_enabled           = true
  subnet_group_name          = aws_elasticache_subnet_group.this.name
  security_group_ids         = [var.security_group_id]
  at_rest_encryption_enabled = true
  transit_encryption_enabled = true
  transit_encryption_mode    = "required"
  kms_key_id                 = var.kms_key_arn
  auto_minor_version_upgrade = true
  snapshot_retention_limit   = 0

  lifecycle {
    ignore_changes = [auth_token, auth_token_update_strategy]
  }
}
