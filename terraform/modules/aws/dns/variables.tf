variable "public_zone_id" {
  description = "ID of the public Route 53 zone of the domain."
  type        = string
  nullable    = false
}

variable "entries" {
  description = "Per region: the name that clients use for this region, its AWS region, and the load balancer's alias target."
  type = map(object({
    host       = string
    aws_region = string
    dns_name   = string
    zone_id    = string
  }))
  nullable = false
}

variable "entry_groups" {
  description = "Names that lead to the nearest of several regions. Give clients whose data may not leave a bloc a name whose regions all lie in it."
  type        = map(set(string))
  nullable    = false

  validation {
    condition     = alltrue([for regions in values(var.entry_groups) : length(setsubtract(regions, keys(var.entries))) == 0 && length(regions) > 0])
    error_message = "entry_groups: each needs at least one region, and only regions of entries."
  }
}
