variable "region" {
  description = "Name of the region, as in the topology."
  type        = string
  nullable    = false
}

variable "processes" {
  description = "Names of what needs an identity in this region, such as agent/agent-1, control-plane/cp-1, etcd/etcd-1."
  type        = set(string)
  nullable    = false
}

variable "administered" {
  description = "Those of `processes` that need the admin's credential as well: control planes."
  type        = set(string)
  nullable    = false

  validation {
    condition     = length(setsubtract(var.administered, var.processes)) == 0
    error_message = "administered: must be among processes."
  }
}

variable "admins" {
  description = "ARNs of the IAM principals that administer the KMS key; usually the role that runs Terraform."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(var.admins) > 0
    error_message = "admins: name at least one principal, or the key could not be changed again."
  }
}
