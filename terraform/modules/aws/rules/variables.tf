variable "region" {
  description = "Name of the region, as in the topology."
  type        = string
  nullable    = false
}

variable "region_cidrs" {
  description = "The /16 of each region's VPC, by region; they must not overlap, because the VPCs are peered."
  type        = map(string)
  nullable    = false

  validation {
    condition     = alltrue([for cidr in values(var.region_cidrs) : can(cidrhost(cidr, 0)) && endswith(cidr, "/16")])
    error_message = "region_cidrs: each must be a /16, such as 10.10.0.0/16."
  }
  validation {
    condition     = length(distinct(values(var.region_cidrs))) == length(var.region_cidrs)
    error_message = "region_cidrs: each region needs its own."
  }
  validation {
    condition     = contains(keys(var.region_cidrs), var.region)
    error_message = "region_cidrs: the region itself is missing."
  }
}

variable "zones" {
  description = "Availability zones, as in the topology: at most 15."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(var.zones) >= 2 && length(var.zones) <= 15
    error_message = "zones: 2 to 15 are needed; a load balancer and ElastiCache span at least 2."
  }
}

variable "firewall_rules" {
  description = "Output `firewall_rules` of the topology: the connections that are permitted."
  type        = map(object({ from = string, to = string, port = number, why = string }))
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

  validation {
    condition     = !contains(var.operator_cidrs, "0.0.0.0/0") && !contains(var.operator_cidrs, "::/0")
    error_message = "operator_cidrs: the admin API is not for the internet; name the networks of operators."
  }
}
