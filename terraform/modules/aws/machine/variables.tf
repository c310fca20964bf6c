variable "name" {
  description = "Name of the machine, unique in the account, such as penstock-eu-de-agent-1."
  type        = string
  nullable    = false
}

variable "host" {
  description = "DNS name of the machine in the private zone."
  type        = string
  nullable    = false
}

variable "private_zone_id" {
  description = "ID of the private Route 53 zone."
  type        = string
  nullable    = false
}

variable "ami_id" {
  description = "Image with Penstock's systemd units, etcd, the AWS CLI and jq; see terraform/README.md."
  type        = string
  nullable    = false
}

variable "instance_type" {
  description = "EC2 instance type."
  type        = string
  nullable    = false
}

variable "subnet_id" {
  description = "Subnet of the machine; its zone is that of the data volume."
  type        = string
  nullable    = false
}

variable "zone" {
  description = "Availability zone of the subnet."
  type        = string
  nullable    = false
}

variable "security_group_id" {
  description = "Security group of the machine's role."
  type        = string
  nullable    = false
}

variable "kms_key_arn" {
  description = "ARN of the region's key."
  type        = string
  nullable    = false
}

variable "fetched_files" {
  description = "ARNs of secrets by the path that they are written to: a JSON object into a directory (path ends with /), a text into a file."
  type        = map(string)
  nullable    = false
}

variable "unit" {
  description = "systemd unit that the machine runs, the user that may read its secrets, and the command where it is not the unit's."
  type        = object({ name = string, user = string, command = optional(string, "") })
  nullable    = false
}

variable "environment" {
  description = "Environment of the unit, as the topology prints it."
  type        = map(string)
  nullable    = false
}

variable "files" {
  description = "Further files by path, such as the endpoints file."
  type        = map(string)
  default     = {}
  nullable    = false
}

variable "data_volume" {
  description = "A volume that outlives the machine: size in GiB, and where it is mounted. Null for none."
  type        = object({ size_gb = number, mount_point = string })
  default     = null
}
