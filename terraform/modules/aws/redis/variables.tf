variable "region" {
  description = "Name of the region, as in the topology."
  type        = string
  nullable    = false
}

variable "subnet_ids" {
  description = "Subnets, one for each zone; at least 2."
  type        = list(string)
  nullable    = false
}

variable "security_group_id" {
  description = "Security group, which admits the agents of the region alone."
  type        = string
  nullable    = false
}

variable "port" {
  description = "Port, as in the topology."
  type        = number
  nullable    = false
}

variable "node_type" {
  description = "Type of the two nodes. The content is small: a few kilobytes for each agent."
  type        = string
  default     = "cache.t4g.small"
  nullable    = false
}

variable "kms_key_arn" {
  description = "ARN of the region's key."
  type        = string
  nullable    = false
}
