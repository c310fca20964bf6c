variable "region" {
  description = "Name of the region, as in the topology."
  type        = string
  nullable    = false
}

variable "region_cidrs" {
  description = "The /16 of each region's VPC, by region; they must not overlap, because the VPCs are peered."
  type        = map(string)
  nullable    = false
}

variable "zones" {
  description = "Availability zones, as in the topology: at most 15."
  type        = list(string)
  nullable    = false
}

variable "firewall_rules" {
  description = "Output `firewall_rules` of the topology: the connections that are permitted."
  type        = map(object({ from = string, to = string, port = number, why = string }))
  nullable    = false
}

variable "client_cidrs" {
  description = "Networks of clients, which reach the load balancer."
  type        = list(string)
  default     = ["0.0.0.0/0"]
  nullable    = false
}

variable "monitoring_cidrs" {
  description = "Networks of the monitoring machines."
  type        = list(string)
  nullable    = false
}

variable "operator_cidrs" {
  description = "Networks of operators, such as a VPN's."
  type        = list(string)
  nullable    = false
}

variable "kms_key_arn" {
  description = "ARN of the region's KMS key, for the flow logs."
  type        = string
  nullable    = false
}
