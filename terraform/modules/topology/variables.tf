variable "domain" {
  description = "DNS domain that every name below is made in, such as penstock.example.internal."
  type        = string

  validation {
    condition     = can(regex("^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\\.)+[a-z]([a-z0-9-]{0,61}[a-z0-9])?$", var.domain))
    error_message = "domain: \"${var.domain}\" is not a DNS domain of at least two lower-case labels, such as penstock.example.internal."
  }
}

variable "regions" {
  description = <<-EOT
    The sites that serve. Per region:
      name               as policy names it; a DNS label
      location           country (ISO 3166-1 alpha-2), city, latitude_deg, longitude_deg of the hardware
      jurisdictions      every legal space it lies in: its country and the blocs it belongs to
      zones              its failure domains
      agents             how many regional agents it has, spread over the zones
      cost_per_gpu_hour  relative price of a GPU hour, in one currency for the whole fleet
      egress_cost_per_gb price of a gigabyte that leaves it for another region, in the same currency
      pools              GPU endpoints: model, accelerator, endpoints (how many), slots (requests one runs at once),
                         queue (requests one holds beyond), zones (the region's when left out), port, tls (whether
                         they serve https)
      trusted_proxies    CIDR ranges of the load balancers before its agents, whose word on client addresses counts
  EOT
  type = list(object({
    name = string
    location = object({
      country       = string
      city          = optional(string, "")
      latitude_deg  = number
      longitude_deg = number
    })
    jurisdictions      = set(string)
    zones              = list(string)
    agents             = optional(number, 2)
    cost_per_gpu_hour  = optional(number, 1)
    egress_cost_per_gb = optional(number, 0)
    pools = list(object({
      model       = string
      accelerator = string
      endpoints   = number
      slots       = number
      queue       = optional(number, 0)
      zones       = optional(list(string))
      port        = optional(number, 8000)
      tls         = optional(bool, false)
    }))
    trusted_proxies = optional(list(string), [])
  }))
  nullable = false

  validation {
    condition     = length(var.regions) > 0
    error_message = "regions: at least one region is needed."
  }
  validation {
    condition     = length(distinct(var.regions[*].name)) == length(var.regions)
    error_message = "regions: names must be unique; given were ${join(", ", var.regions[*].name)}."
  }
  validation {
    condition     = alltrue([for region in var.regions : can(regex("^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", region.name))])
    error_message = "regions: a name must be a lower-case DNS label (letters, digits, inner hyphens; at most 63)."
  }
  validation {
    condition = alltrue([for region in var.regions :
      can(regex("^[A-Z]{2}$", region.location.country)) && contains(region.jurisdictions, region.location.country)
    ])
    error_message = "regions: location.country must be an upper-case ISO 3166-1 alpha-2 code and be among the region's jurisdictions."
  }
  validation {
    condition = alltrue([for region in var.regions :
      abs(region.location.latitude_deg) <= 90 && abs(region.location.longitude_deg) <= 180
    ])
    error_message = "regions: latitude_deg must lie in -90..90 and longitude_deg in -180..180."
  }
  validation {
    condition = alltrue([for region in var.regions :
      length(region.zones) > 0 && length(distinct(region.zones)) == length(region.zones)
    ])
    error_message = "regions: each needs at least one zone, and its zones must be unique."
  }
  validation {
    condition = alltrue([for region in var.regions :
      region.agents == floor(region.agents) && region.agents >= (contains(var.accepted_risks.single_agent_regions, region.name) ? 1 : 2)
    ])
    error_message = "regions: each needs at least 2 agents, so that one may die or restart. To run one with a single agent all the same, name it in accepted_risks.single_agent_regions."
  }
  validation {
    condition = alltrue(flatten([for region in var.regions : [for pool in region.pools :
      pool.endpoints == floor(pool.endpoints) && pool.endpoints > 0 && pool.slots == floor(pool.slots) && pool.slots > 0 && pool.queue == floor(pool.queue) && pool.queue >= 0
    ]]))
    error_message = "regions: a pool's endpoints and slots must be whole numbers above 0, its queue one of 0 or more."
  }
  validation {
    condition = alltrue(flatten([for region in var.regions : [for pool in region.pools :
      pool.zones == null ? true : length(pool.zones) > 0 && length(setsubtract(pool.zones, region.zones)) == 0
    ]]))
    error_message = "regions: a pool's zones must be some of its region's zones; leave them out for all."
  }
  validation {
    condition     = alltrue(flatten([for region in var.regions : [for pool in region.pools : pool.port > 0 && pool.port < 65536]]))
    error_message = "regions: a pool's port must lie in 1..65535."
  }
  validation {
    condition     = alltrue(flatten([for region in var.regions : [for range in region.trusted_proxies : can(cidrhost(range, 0))]]))
    error_message = "regions: trusted_proxies must be CIDR ranges such as 10.20.0.0/16."
  }
}

variable "control_planes" {
  description = "Where control planes run: a unique name, one of the regions, and one of its zones. Two or more, so that another can lead."
  type        = list(object({ name = string, region = string, zone = string }))
  nullable    = false

  validation {
    condition     = length(distinct(var.control_planes[*].name)) == length(var.control_planes)
    error_message = "control_planes: names must be unique; given were ${join(", ", var.control_planes[*].name)}."
  }
  validation {
    condition = alltrue([for seat in var.control_planes :
      length([for region in var.regions : region if region.name == seat.region && contains(region.zones, seat.zone)]) > 0
    ])
    error_message = "control_planes: each must stand in one of the regions and in one of that region's zones."
  }
  validation {
    condition     = length(distinct([for seat in var.control_planes : "${seat.region}/${seat.zone}"])) > 1
    error_message = "control_planes: at least 2 are needed, and not all in one zone, so that another leads when one or its zone is lost."
  }
}

variable "etcd_members" {
  description = "Where etcd runs: a unique name, one of the regions, and one of its zones. A region's zone is a failure domain."
  type        = list(object({ name = string, region = string, zone = string }))
  nullable    = false

  validation {
    condition     = length(var.etcd_members) % 2 == 1
    error_message = "etcd_members: an odd number is needed; an even one tolerates no more losses than one member fewer."
  }
  validation {
    condition     = length(distinct(var.etcd_members[*].name)) == length(var.etcd_members)
    error_message = "etcd_members: names must be unique; given were ${join(", ", var.etcd_members[*].name)}."
  }
  validation {
    condition = alltrue([for member in var.etcd_members :
      length([for region in var.regions : region if region.name == member.region && contains(region.zones, member.zone)]) > 0
    ])
    error_message = "etcd_members: each must stand in one of the regions and in one of that region's zones."
  }
  validation {
    condition = var.accepted_risks.etcd_not_redundant || alltrue([
      for domain, members in { for member in var.etcd_members : "${member.region}/${member.zone}" => member.name... } :
      length(members) * 2 < length(var.etcd_members)
    ])
    error_message = "etcd_members: losing one failure domain (a zone of a region) must leave a quorum: at least 3 members in at least 3 zones, and no zone with half of them. To do with less, set accepted_risks.etcd_not_redundant."
  }
}

variable "residency_blocs" {
  description = "Jurisdictions that residency rules confine traffic to, such as EU. Each should have two regions or more, or the loss of one refuses its traffic."
  type        = set(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for bloc in var.residency_blocs : anytrue([for region in var.regions : contains(region.jurisdictions, bloc)])])
    error_message = "residency_blocs: no region lies in one of ${join(", ", var.residency_blocs)}; traffic confined to it could go nowhere. Check the spelling against the regions' jurisdictions."
  }
}

variable "ports" {
  description = "TCP ports: of an agent its traffic, peer and admin faces; of a control plane; of etcd for clients and members; of Redis."
  type = object({
    agent_traffic = optional(number, 8080)
    agent_peer    = optional(number, 8081)
    agent_admin   = optional(number, 8082)
    control_plane = optional(number, 8090)
    etcd_client   = optional(number, 2379)
    etcd_peer     = optional(number, 2380)
    redis         = optional(number, 6379)
  })
  default  = {}
  nullable = false

  validation {
    condition     = alltrue([for name, port in var.ports : port == floor(port) && port > 0 && port < 65536])
    error_message = "ports: each must be a whole number in 1..65535."
  }
  validation {
    condition     = length(distinct(values(var.ports))) == length(values(var.ports))
    error_message = "ports: each must be its own, so that any two of these may share a machine."
  }
}

variable "paths" {
  description = <<-EOT
    Where files are on the machines. Identities and credentials are put there by the secret store; Terraform never sees them.
    Empty for none: geoip_file, redis_password_file. Empty for those of the identity: traffic_certificate_file, traffic_key_file.
  EOT
  type = object({
    endpoints_file           = optional(string, "/etc/penstock/endpoints.yaml")
    geoip_file               = optional(string, "")
    identity_dir             = optional(string, "/run/penstock-identity")
    admin_token_file         = optional(string, "/run/penstock-admin-token")
    redis_password_file      = optional(string, "")
    traffic_certificate_file = optional(string, "")
    traffic_key_file         = optional(string, "")
    state_dir                = optional(string, "/var/lib/penstock-agent")
    policy_dir               = optional(string, "/etc/penstock/policies")
    etcd_data_dir            = optional(string, "/var/lib/etcd")
  })
  default  = {}
  nullable = false

  validation {
    condition = alltrue([for name, path in var.paths :
      startswith(path, "/") || (path == "" && contains(["geoip_file", "redis_password_file", "traffic_certificate_file", "traffic_key_file"], name))
    ])
    error_message = "paths: each must be absolute."
  }
  validation {
    condition     = (var.paths.traffic_certificate_file == "") == (var.paths.traffic_key_file == "")
    error_message = "paths: traffic_certificate_file and traffic_key_file belong together."
  }
}

variable "policy_repository" {
  description = "Git repository of the policy bundle, which every control plane polls. Empty: the directory policy_dir of paths."
  type        = string
  default     = ""
  nullable    = false
}

variable "redis_hosts" {
  description = "Host of each region's Redis, where its certificate contains another name than redis.<region>.<domain>, as ElastiCache's does."
  type        = map(string)
  default     = {}
  nullable    = false

  validation {
    condition     = alltrue([for region in keys(var.redis_hosts) : contains(var.regions[*].name, region)])
    error_message = "redis_hosts: each must be of one of the regions."
  }
}

variable "accepted_risks" {
  description = <<-EOT
    What would otherwise be refused, accepted knowingly:
      single_agent_regions  regions that may run one agent
      etcd_not_redundant    etcd may have one member, or so few failure domains that losing one loses the quorum
  EOT
  type = object({
    single_agent_regions = optional(set(string), [])
    etcd_not_redundant   = optional(bool, false)
  })
  default  = {}
  nullable = false
}
