# A network load balancer before the agents of a region. It ends the clients' TLS and encrypts again to the agents, keeps
# the clients' addresses, and needs no knowledge of requests: agents balance those themselves.

resource "aws_lb" "this" {
  #checkov:skip=CKV_AWS_91:Access logs are on where a bucket is named; agents log every request themselves.
  name                             = "penstock-${var.region}"
  internal                         = false
  load_balancer_type               = "network"
  subnets                          = var.public_subnet_ids
  security_groups                  = [var.security_group_id]
  enable_cross_zone_load_balancing = true
  enable_deletion_protection       = true

  dynamic "access_logs" {
    for_each = var.access_log_bucket == null ? [] : [var.access_log_bucket]

    content {
      bucket  = access_logs.value
      prefix  = "penstock/${var.region}"
      enabled = true
    }
  }
}

resource "aws_lb_target_group" "this" {
  name                 = "penstock-${var.region}"
  vpc_id               = var.vpc_id
  port                 = var.port
  protocol             = "TLS"
  target_type          = "instance"
  preserve_client_ip   = true
  deregistration_delay = 300

  # Agents that drain answer 503 here, and complete the requests that they have.
  health_check {
    protocol            = "HTTPS"
    path                = "/readyz"
    matcher             = "200"
    interval            = 10
    timeout             = 5
    healthy_threshold   = 2
    unhealthy_threshold = 2
  }
}

resource "aws_lb_target_group_attachment" "this" {
  for_each = var.instances

  target_group_arn = aws_lb_target_group.this.arn
  target_id        = each.value
  port             = var.port
}

resource "aws_lb_listener" "this" {
  load_balancer_arn = aws_lb.this.arn
  port              = 443
  protocol          = "TLS"
  certificate_arn   = var.certificate_arn
  ssl_policy        = "ELBSecurityPolicy-TLS13-1-2-2021-06"
  alpn_policy       = "HTTP1Only"

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.this.arn
  }
}
