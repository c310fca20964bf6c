output "instance_id" {
  description = "ID of the instance."
  value       = aws_instance.this.id
}

output "private_ip" {
  description = "Address of the machine."
  value       = aws_instance.this.private_ip
}
