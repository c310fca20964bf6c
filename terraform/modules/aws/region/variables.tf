variable "region" {
  description = "Name of the region, as in the topology."
  type        = string
  nullable    = false
}

variable "zones" {
  description = "Availability zones of the region, as in the topology."
  type        = list(string)
  nullable    = false
}

variable "region_cidrs" {
  description = "The /16 of each region's VPC, by region."
  type        = map(string)
  nullable    = false
}

# Outputs of the topology, one by one: the agents' settings contain the host of Redis, which is made here, and an object of
# all outputs would depend on itself.

variable "agents" {
  description = "Output `agents` of the topology."
  type        = map(map(object({ host = string, zone = string, environment = map(string) })))
  nullable    = false
}

variable "control_planes" {
  description = "Output `control_planes` of the topology."
  type        = map(object({ host = string, region = string, zone = string, environment = map(string) }))
  nullable    = false
}

variable "etcd_members" {
  description = "`members` of the output `etcd` of the topology."
  type        = map(object({ host = string, region = string, zone = string, environment = map(string) }))
  nullable    = false
}

variable "endpoints_files" {
  description = "Output `endpoints_files` of the topology."
  type        = map(string)
  nullable    = false
}

variable "firewall_rules" {
  description = "Output `firewall_rules` of the topology."
  type        = map(object({ from = string, to = string, port = number, why = string }))
  nullable    = false
}

variable "ports" {
  description = "Output `ports` of the topology."
  type        = map(number)
  nullable    = false
}

variable "paths" {
  description = "Output `paths` of the topology."
  type        = map(string)
  nullable    = false
}

variable "private_zone_id" {
  description = "ID of the private Route 53 zone of the domain, associated with the VPC of every region."
  type        = string
  nullable    = false
}

variable "certificate_arn" {
  description = "ACM certificate of this AWS region for the clients' names."
  type        = string
  nullable    = false
}

variable "ami_id" {
  description = "Image of this AWS region; see terraform/README.md."
  type        = string
  nullable    = false
}

variable "instance_types" {
  description = "EC2 instance types of agents, control planes, etcd members and Prometheus."
  type = object({
    agent         = optional(string, "c7g.xlarge")
    control_plane = optional(string, "m7g.large")
    etcd          = optional(string, "m7g.large")
    monitoring    = optional(string, "m7g.large")
  })
  default  = {}
  nullable = false
}

variable "redis_node_type" {
  description = "Type of the two nodes of Redis."
  type        = string
  default     = "cache.t4g.small"
  nullable    = false
}

variable "prometheus" {
  description = "Text of prometheus.yml of a machine in the first zone, and its host. Null for none in this region."
  type        = object({ host = string, configuration = string })
  default     = null
}

variable "client_cidrs" {
  description = "Networks of clients."
  type        = list(string)
  default     = ["0.0.0.0/0"]
  nullable    = false
}

variable "monitoring_cidrs" {
  description = "Networks of the monitoring machines of every region."
  type        = list(string)
  nullable    = false
}

variable "operator_cidrs" {
  description = "Networks of operators."
  type        = list(string)
  nullable    = false
}

variable "admins" {
  description = "ARNs of the IAM principals that administer the region's KMS key."
  type        = list(string)
  nullable    = false
}

variable "access_log_bucket" {
  description = "Bucket of the load balancer's access logs. Null for none."
  type        = string
  default     = null
}
