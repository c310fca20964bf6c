# Two regions reach each other over AWS's network, which encrypts traffic between regions; Penstock encrypts it as well.

resource "aws_vpc_peering_connection" "this" {
  vpc_id      = var.requester.vpc_id
  peer_vpc_id = var.accepter.vpc_id
  peer_region = var.accepter.aws_region
  auto_accept = false

  tags = { Name = "penstock-${var.requester.name}-${var.accepter.name}" }
}

resource "aws_vpc_peering_connection_accepter" "this" {
  provider = aws.accepter

  vpc_peering_connection_id = aws_vpc_peering_connection.this.id
  auto_accept               = true

  tags = { Name = "penstock-${var.requester.name}-${var.accepter.name}" }
}

resource "aws_route" "to_accepter" {
  for_each = var.requester.route_table_ids

  route_table_id            = each.value
  destination_cidr_block    = var.accepter.cidr
  vpc_peering_connection_id = aws_vpc_peering_connection_accepter.this.id
}

resource "aws_route" "to_requester" {
  provider = aws.accepter
  for_each = var.accepter.route_table_ids

  route_table_id            = each.value
  destination_cidr_block    = var.requester.cidr
  vpc_peering_connection_id = aws_vpc_peering_connection_accepter.this.id
}
