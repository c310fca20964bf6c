variable "region" {
  description = "Name of the region, as in the topology."
  type        = string
  nullable    = false
}

variable "kms_key_arn" {
  description = "ARN of the region's key, for the topic."
  type        = string
  nullable    = false
}

variable "load_balancer" {
  description = "Names of the load balancer and its target group in CloudWatch."
  type        = object({ arn_suffix = string, target_group_suffix = string })
  nullable    = false
}

variable "agents" {
  description = "Number of agents of the region."
  type        = number
  nullable    = false
}

variable "instances" {
  description = "Instance IDs of all machines of the region, by name."
  type        = map(string)
  nullable    = false
}
