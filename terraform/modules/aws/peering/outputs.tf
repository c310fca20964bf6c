output "id" {
  description = "ID of the peering connection, once it is accepted."
  value       = aws_vpc_peering_connection_accepter.this.id
}
