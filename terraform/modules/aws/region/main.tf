# Everything of one region: network, secrets, Redis, agents behind a load balancer, and the etcd members and control
# planes that the topology puts here.

locals {
  agents         = var.agents[var.region]
  control_planes = { for name, each in var.control_planes : name => each if each.region == var.region }
  etcd_members   = { for name, each in var.etcd_members : name => each if each.region == var.region }
  prometheus     = var.prometheus == null ? {} : { prometheus = var.prometheus }

  processes = merge(
    { for name, each in local.agents : "agent/${name}" => each },
    { for name, each in local.control_planes : "control-plane/${name}" => each },
    { for name, each in local.etcd_members : "etcd/${name}" => each },
    { for name, each in local.prometheus : "monitor/${name}" => each },
  )
  identity_dir = "${var.paths.identity_dir}/"
}

module "network" {
  source = "../network"

  region           = var.region
  region_cidrs     = var.region_cidrs
  zones            = var.zones
  firewall_rules   = var.firewall_rules
  client_cidrs     = var.client_cidrs
  monitoring_cidrs = var.monitoring_cidrs
  operator_cidrs   = var.operator_cidrs
  kms_key_arn      = module.secrets.kms_key_arn
}

module "secrets" {
  source = "../secrets"

  region       = var.region
  processes    = keys(local.processes)
  administered = [for name in keys(local.control_planes) : "control-plane/${name}"]
  admins       = var.admins
}

module "redis" {
  source = "../redis"

  region            = var.region
  subnet_ids        = values(module.network.subnet_ids["redis"])
  security_group_id = module.network.security_group_ids["redis"]
  port              = var.ports.redis
  node_type         = var.redis_node_type
  kms_key_arn       = module.secrets.kms_key_arn
}

module "agent" {
  source   = "../machine"
  for_each = local.agents

  name              = "penstock-${var.region}-${each.key}"
  host              = each.value.host
  private_zone_id   = var.private_zone_id
  ami_id            = var.ami_id
  instance_type     = var.instance_types.agent
  subnet_id         = module.network.subnet_ids["agent"][each.value.zone]
  zone              = each.value.zone
  security_group_id = module.network.security_group_ids["agent"]
  kms_key_arn       = module.secrets.kms_key_arn
  fetched_files     = { (local.identity_dir) = module.secrets.identity_arns["agent/${each.key}"] }
  unit              = { name = "penstock-agent", user = "penstock-agent", command = "/opt/penstock/bin/penstock-agent" }
  environment       = each.value.environment
  files             = { (var.paths.endpoints_file) = var.endpoints_files[var.region] }
}

module "control_plane" {
  source   = "../machine"
  for_each = local.control_planes

  name              = "penstock-${var.region}-${each.key}"
  host              = each.value.host
  private_zone_id   = var.private_zone_id
  ami_id            = var.ami_id
  instance_type     = var.instance_types.control_plane
  subnet_id         = module.network.subnet_ids["core"][each.value.zone]
  zone              = each.value.zone
  security_group_id = module.network.security_group_ids["control-plane"]
  kms_key_arn       = module.secrets.kms_key_arn
  unit              = { name = "penstock-control-plane", user = "penstock-control-plane", command = "/opt/penstock/bin/penstock serve" }
  environment       = each.value.environment

  fetched_files = {
    (local.identity_dir)         = module.secrets.identity_arns["control-plane/${each.key}"]
    (var.paths.admin_token_file) = module.secrets.admin_arns["control-plane/${each.key}"]
  }
}

module "etcd_member" {
  source   = "../machine"
  for_each = local.etcd_members

  name              = "penstock-${var.region}-${each.key}"
  host              = each.value.host
  private_zone_id   = var.private_zone_id
  ami_id            = var.ami_id
  instance_type     = var.instance_types.etcd
  subnet_id         = module.network.subnet_ids["core"][each.value.zone]
  zone              = each.value.zone
  security_group_id = module.network.security_group_ids["etcd"]
  kms_key_arn       = module.secrets.kms_key_arn
  fetched_files     = { (local.identity_dir) = module.secrets.identity_arns["etcd/${each.key}"] }
  unit              = { name = "etcd", user = "etcd" }
  environment       = each.value.environment
  data_volume       = { size_gb = 20, mount_point = var.paths.etcd_data_dir }
}

module "prometheus" {
  source   = "../machine"
  for_each = local.prometheus

  name              = "penstock-${var.region}-${each.key}"
  host              = each.value.host
  private_zone_id   = var.private_zone_id
  ami_id            = var.ami_id
  instance_type     = var.instance_types.monitoring
  subnet_id         = module.network.subnet_ids["monitoring"][var.zones[0]]
  zone              = var.zones[0]
  security_group_id = module.network.security_group_ids["monitoring"]
  kms_key_arn       = module.secrets.kms_key_arn
  fetched_files     = { (local.identity_dir) = module.secrets.identity_arns["monitor/${each.key}"] }
  unit              = { name = "prometheus", user = "prometheus" }
  environment       = {}
  files             = { "/etc/prometheus/prometheus.yml" = each.value.configuration }
  data_volume       = { size_gb = 100, mount_point = "/var/lib/prometheus" }
}

module "load_balancer" {
  source = "../agents"

  region            = var.region
  vpc_id            = module.network.vpc_id
  public_subnet_ids = values(module.network.subnet_ids["public"])
  security_group_id = module.network.security_group_ids["load-balancer"]
  instances         = { for name, machine in module.agent : name => machine.instance_id }
  port              = var.ports.agent_traffic
  certificate_arn   = var.certificate_arn
  access_log_bucket = var.access_log_bucket
}

module "monitoring" {
  source = "../monitoring"

  region        = var.region
  kms_key_arn   = module.secrets.kms_key_arn
  agents        = length(local.agents)
  load_balancer = module.load_balancer.load_balancer

  instances = merge(
    { for name, machine in module.agent : name => machine.instance_id },
    { for name, machine in module.control_plane : name => machine.instance_id },
    { for name, machine in module.etcd_member : name => machine.instance_id },
    { for name, machine in module.prometheus : name => machine.instance_id },
  )
}
