variable "region" {
  description = "Name of the region, as in the topology."
  type        = string
  nullable    = false
}

variable "vpc_id" {
  description = "VPC of the region."
  type        = string
  nullable    = false
}

variable "public_subnet_ids" {
  description = "Public subnets of the load balancer, one for each zone."
  type        = list(string)
  nullable    = false
}

variable "security_group_id" {
  description = "Security group of the load balancer."
  type        = string
  nullable    = false
}

variable "instances" {
  description = "Instance ID of each agent, by name."
  type        = map(string)
  nullable    = false
}

variable "port" {
  description = "Port of the agents' traffic listener."
  type        = number
  nullable    = false
}

variable "certificate_arn" {
  description = "ACM certificate for the names of this entry."
  type        = string
  nullable    = false
}

variable "access_log_bucket" {
  description = "Name of a bucket for the access logs of the load balancer; its policy must admit log delivery. Null for none."
  type        = string
  default     = null
}
