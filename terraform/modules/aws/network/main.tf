# A VPC with a subnet for each role and zone.

module "rules" {
  source = "../rules"

  region           = var.region
  region_cidrs     = var.region_cidrs
  zones            = var.zones
  firewall_rules   = var.firewall_rules
  monitoring_cidrs = var.monitoring_cidrs
  operator_cidrs   = var.operator_cidrs
}

resource "aws_vpc" "this" {
  cidr_block           = var.region_cidrs[var.region]
  enable_dns_support   = true
  enable_dns_hostnames = true

  tags = { Name = "penstock-${var.region}" }
}

# What has no security group of its own may reach nothing and be reached by nothing.
resource "aws_default_security_group" "this" {
  vpc_id = aws_vpc.this.id
}

resource "aws_subnet" "this" {
  for_each = module.rules.subnets

  vpc_id                  = aws_vpc.this.id
  availability_zone       = each.value.zone
  cidr_block              = each.value.cidr
  map_public_ip_on_launch = false

  tags = { Name = "penstock-${var.region}-${each.key}" }
}

resource "aws_internet_gateway" "this" {
  vpc_id = aws_vpc.this.id

  tags = { Name = "penstock-${var.region}" }
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.this.id

  tags = { Name = "penstock-${var.region}-public" }
}

resource "aws_route" "internet" {
  route_table_id         = aws_route_table.public.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this.id
}

resource "aws_route_table_association" "public" {
  for_each = toset(var.zones)

  subnet_id      = aws_subnet.this["public/${each.key}"].id
  route_table_id = aws_route_table.public.id
}

# One for each zone: machines reach git, package and secret services although another zone is lost.
resource "aws_eip" "nat" {
  for_each = toset(var.zones)

  domain = "vpc"

  tags = { Name = "penstock-${var.region}-nat-${each.key}" }
}

resource "aws_nat_gateway" "this" {
  for_each = toset(var.zones)

  allocation_id = aws_eip.nat[each.key].id
  subnet_id     = aws_subnet.this["public/${each.key}"].id

  tags = { Name = "penstock-${var.region}-${each.key}" }
}

resource "aws_route_table" "private" {
  for_each = toset(var.zones)

  vpc_id = aws_vpc.this.id

  tags = { Name = "penstock-${var.region}-private-${each.key}" }
}

resource "aws_route" "nat" {
  for_each = toset(var.zones)

  route_table_id         = aws_route_table.private[each.key].id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.this[each.key].id
}

resource "aws_route_table_association" "private" {
  for_each = { for key, subnet in module.rules.subnets : key => subnet if subnet.role != "public" }

  subnet_id      = aws_subnet.this[each.key].id
  route_table_id = aws_route_table.private[each.value.zone].id
}

resource "aws_cloudwatch_log_group" "flows" {
  name              = "/penstock/${var.region}/flows"
  retention_in_days = 365
  kms_key_id        = var.kms_key_arn
}

data "aws_iam_policy_document" "flows_assume" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["vpc-flow-logs.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "flows" {
  statement {
    actions   = ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"]
    resources = ["${aws_cloudwatch_log_group.flows.arn}:*"]
  }
}

resource "aws_iam_role" "flows" {
  name_prefix        = "penstock-${var.region}-flows-"
  assume_role_policy = data.aws_iam_policy_document.flows_assume.json
}

resource "aws_iam_role_policy" "flows" {
  name   = "flows"
  role   = aws_iam_role.flows.id
  policy = data.aws_iam_policy_document.flows.json
}

resource "aws_flow_log" "this" {
  vpc_id          = aws_vpc.this.id
  traffic_type    = "ALL"
  iam_role_arn    = aws_iam_role.flows.arn
  log_destination = aws_cloudwatch_log_group.flows.arn
}
