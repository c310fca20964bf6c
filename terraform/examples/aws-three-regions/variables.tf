variable "domain" {
  description = "Domain of the fleet: a public zone for clients' names, and a private zone of the same name for machines."
  type        = string
  nullable    = false
}

variable "public_zone_id" {
  description = "ID of the public Route 53 zone of the domain."
  type        = string
  nullable    = false
}

variable "certificate_arns" {
  description = "ACM certificates for *.domain, by region name."
  type        = map(string)
  nullable    = false
}

variable "ami_ids" {
  description = "Images by region name; see terraform/README.md."
  type        = map(string)
  nullable    = false
}

variable "policy_repository" {
  description = "Git repository of the policy bundle, by https."
  type        = string
  nullable    = false
}

variable "operator_cidrs" {
  description = "Networks of operators, such as a VPN's."
  type        = list(string)
  nullable    = false
}

variable "admins" {
  description = "ARNs of the IAM principals that administer the KMS keys."
  type        = list(string)
  nullable    = false
}
