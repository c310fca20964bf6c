# Clients' names. A health check takes a region whose agents are not ready out of the answers; the TTL of alias records is
# a minute. Until then, and for clients that keep connections, agents forward to another region themselves.

locals {
  memberships = merge([
    for name, regions in var.entry_groups : { for region in regions : "${name}/${region}" => { name = name, region = region } }
  ]...)
}

resource "aws_route53_health_check" "entry" {
  for_each = var.entries

  type              = "HTTPS"
  fqdn              = each.value.host
  port              = 443
  resource_path     = "/readyz"
  request_interval  = 10
  failure_threshold = 2
  enable_sni        = true
  measure_latency   = true

  tags = { Name = "penstock-${each.key}" }
}

# The regions' own names have no health check: they say where a client is served, not which region is well.
resource "aws_route53_record" "entry" {
  #checkov:skip=CKV2_AWS_23:The load balancer is in another module.
  for_each = var.entries

  zone_id = var.public_zone_id
  name    = each.value.host
  type    = "A"

  alias {
    name                   = each.value.dns_name
    zone_id                = each.value.zone_id
    evaluate_target_health = false
  }
}

resource "aws_route53_record" "group" {
  #checkov:skip=CKV2_AWS_23:The load balancer is in another module.
  for_each = local.memberships

  zone_id         = var.public_zone_id
  name            = each.value.name
  type            = "A"
  set_identifier  = each.value.region
  health_check_id = aws_route53_health_check.entry[each.value.region].id

  latency_routing_policy {
    region = var.entries[each.value.region].aws_region
  }

  alias {
    name                   = var.entries[each.value.region].dns_name
    zone_id                = var.entries[each.value.region].zone_id
    evaluate_target_health = true
  }
}
