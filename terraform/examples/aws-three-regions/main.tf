# Frankfurt, Ireland and Virginia: two regions of the EU, so that confined traffic survives the loss of one, and three
# regions for the three members of etcd and the three control planes.

locals {
  model = "llama-3.1-8b"

  aws_regions = { eu-de = "eu-central-1", eu-ie = "eu-west-1", us-east = "us-east-1" }
  cidrs       = { eu-de = "10.10.0.0/16", eu-ie = "10.20.0.0/16", us-east = "10.30.0.0/16" }
  zones = {
    eu-de   = ["eu-central-1a", "eu-central-1b", "eu-central-1c"]
    eu-ie   = ["eu-west-1a", "eu-west-1b", "eu-west-1c"]
    us-east = ["us-east-1a", "us-east-1b", "us-east-1c"]
  }

  # Prometheus runs in Frankfurt; in the range that the network module gives to monitoring.
  monitoring_cidrs = [cidrsubnet(local.cidrs["eu-de"], 4, 5)]
}

module "topology" {
  source = "../../modules/topology"

  domain            = var.domain
  policy_repository = var.policy_repository

  regions = [
    {
      name          = "eu-de"
      location      = { country = "DE", city = "Frankfurt", latitude_deg = 50.11, longitude_deg = 8.68 }
      jurisdictions = ["DE", "EU", "EEA"]
      zones         = local.zones["eu-de"]
      pools         = [{ model = local.model, accelerator = "h100", endpoints = 6, slots = 64 }]
    },
    {
      name          = "eu-ie"
      location      = { country = "IE", city = "Dublin", latitude_deg = 53.35, longitude_deg = -6.26 }
      jurisdictions = ["IE", "EU", "EEA"]
      zones         = local.zones["eu-ie"]
      pools         = [{ model = local.model, accelerator = "h100", endpoints = 4, slots = 64 }]
    },
    {
      name          = "us-east"
      location      = { country = "US", city = "Ashburn", latitude_deg = 39.04, longitude_deg = -77.49 }
      jurisdictions = ["US"]
      zones         = local.zones["us-east"]
      agents        = 3
      pools         = [{ model = local.model, accelerator = "h100", endpoints = 8, slots = 64 }]
    },
  ]

  control_planes = [
    { name = "cp-1", region = "eu-de", zone = "eu-central-1a" },
    { name = "cp-2", region = "eu-ie", zone = "eu-west-1a" },
    { name = "cp-3", region = "us-east", zone = "us-east-1a" },
  ]

  etcd_members = [
    { name = "etcd-1", region = "eu-de", zone = "eu-central-1b" },
    { name = "etcd-2", region = "eu-ie", zone = "eu-west-1b" },
    { name = "etcd-3", region = "us-east", zone = "us-east-1b" },
  ]

  residency_blocs = ["EU"]

  redis_hosts = {
    eu-de   = module.frankfurt.redis_host
    eu-ie   = module.ireland.redis_host
    us-east = module.virginia.redis_host
  }
}

resource "aws_route53_zone" "private" {
  #checkov:skip=CKV2_AWS_38:DNSSEC is for public zones.
  #checkov:skip=CKV2_AWS_39:Query logging is for public zones.
  name = var.domain

  vpc {
    vpc_id = module.frankfurt.peering.vpc_id
  }

  lifecycle {
    ignore_changes = [vpc]
  }
}

resource "aws_route53_zone_association" "ireland" {
  zone_id    = aws_route53_zone.private.id
  vpc_id     = module.ireland.peering.vpc_id
  vpc_region = local.aws_regions["eu-ie"]
}

resource "aws_route53_zone_association" "virginia" {
  zone_id    = aws_route53_zone.private.id
  vpc_id     = module.virginia.peering.vpc_id
  vpc_region = local.aws_regions["us-east"]
}

module "frankfurt" {
  source = "../../modules/aws/region"

  region           = "eu-de"
  zones            = local.zones["eu-de"]
  region_cidrs     = local.cidrs
  agents           = module.topology.agents
  control_planes   = module.topology.control_planes
  etcd_members     = module.topology.etcd.members
  endpoints_files  = module.topology.endpoints_files
  firewall_rules   = module.topology.firewall_rules
  ports            = module.topology.ports
  paths            = module.topology.paths
  private_zone_id  = aws_route53_zone.private.id
  certificate_arn  = var.certificate_arns["eu-de"]
  ami_id           = var.ami_ids["eu-de"]
  monitoring_cidrs = local.monitoring_cidrs
  operator_cidrs   = var.operator_cidrs
  admins           = var.admins

  prometheus = {
    host          = "prometheus.eu-de.${var.domain}"
    configuration = yamlencode({ scrape_configs = module.topology.prometheus_scrape_configs })
  }
}

module "ireland" {
  source    = "../../modules/aws/region"
  providers = { aws = aws.ireland }

  region           = "eu-ie"
  zones            = local.zones["eu-ie"]
  region_cidrs     = local.cidrs
  agents           = module.topology.agents
  control_planes   = module.topology.control_planes
  etcd_members     = module.topology.etcd.members
  endpoints_files  = module.topology.endpoints_files
  firewall_rules   = module.topology.firewall_rules
  ports            = module.topology.ports
  paths            = module.topology.paths
  private_zone_id  = aws_route53_zone.private.id
  certificate_arn  = var.certificate_arns["eu-ie"]
  ami_id           = var.ami_ids["eu-ie"]
  monitoring_cidrs = local.monitoring_cidrs
  operator_cidrs   = var.operator_cidrs
  admins           = var.admins
}

module "virginia" {
  source    = "../../modules/aws/region"
  providers = { aws = aws.virginia }

  region           = "us-east"
  zones            = local.zones["us-east"]
  region_cidrs     = local.cidrs
  agents           = module.topology.agents
  control_planes   = module.topology.control_planes
  etcd_members     = module.topology.etcd.members
  endpoints_files  = module.topology.endpoints_files
  firewall_rules   = module.topology.firewall_rules
  ports            = module.topology.ports
  paths            = module.topology.paths
  private_zone_id  = aws_route53_zone.private.id
  certificate_arn  = var.certificate_arns["us-east"]
  ami_id           = var.ami_ids["us-east"]
  monitoring_cidrs = local.monitoring_cidrs
  operator_cidrs   = var.operator_cidrs
  admins           = var.admins
}

module "frankfurt_ireland" {
  source    = "../../modules/aws/peering"
  providers = { aws = aws, aws.accepter = aws.ireland }

  requester = module.frankfurt.peering
  accepter  = merge(module.ireland.peering, { aws_region = local.aws_regions["eu-ie"] })
}

module "frankfurt_virginia" {
  source    = "../../modules/aws/peering"
  providers = { aws = aws, aws.accepter = aws.virginia }

  requester = module.frankfurt.peering
  accepter  = merge(module.virginia.peering, { aws_region = local.aws_regions["us-east"] })
}

module "ireland_virginia" {
  source    = "../../modules/aws/peering"
  providers = { aws = aws.ireland, aws.accepter = aws.virginia }

  requester = module.ireland.peering
  accepter  = merge(module.virginia.peering, { aws_region = local.aws_regions["us-east"] })
}

module "dns" {
  source = "../../modules/aws/dns"

  public_zone_id = var.public_zone_id

  entries = {
    for region, balancer in {
      eu-de   = module.frankfurt.load_balancer
      eu-ie   = module.ireland.load_balancer
      us-east = module.virginia.load_balancer
      } : region => {
      host       = module.topology.dns_names.entries[region]
      aws_region = local.aws_regions[region]
      dns_name   = balancer.dns_name
      zone_id    = balancer.zone_id
    }
  }

  # Tenants whose requests may not leave the EU use eu.<domain>: its answers contain regions of the EU alone.
  entry_groups = {
    "api.${var.domain}" = ["eu-de", "eu-ie", "us-east"]
    "eu.${var.domain}"  = ["eu-de", "eu-ie"]
  }
}
