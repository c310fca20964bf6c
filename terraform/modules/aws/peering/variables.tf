variable "requester" {
  description = "The region of the provider `aws`: VPC, its CIDR, and its private route tables by zone."
  type        = object({ name = string, vpc_id = string, cidr = string, route_table_ids = map(string) })
  nullable    = false
}

variable "accepter" {
  description = "The region of the provider `aws.accepter`: as `requester`, and the name of its AWS region."
  type        = object({ name = string, vpc_id = string, cidr = string, route_table_ids = map(string), aws_region = string })
  nullable    = false
}
