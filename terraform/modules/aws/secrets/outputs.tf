output "kms_key_arn" {
  description = "ARN of the region's key."
  value       = aws_kms_key.this.arn
}

output "identity_arns" {
  description = "ARN of the secret with the identity of each process."
  value       = { for process, each in aws_secretsmanager_secret.identity : process => each.arn }
}

output "admin_arns" {
  description = "ARN of the secret with the admin's credential, by process; only for those of `administered`."
  value       = { for process in var.administered : process => aws_secretsmanager_secret.admin[0].arn }
}
