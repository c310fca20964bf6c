output "load_balancer" {
  description = "DNS name and zone ID of the load balancer, for alias records; its and its target group's name in CloudWatch."
  value = {
    dns_name            = aws_lb.this.dns_name
    zone_id             = aws_lb.this.zone_id
    arn_suffix          = aws_lb.this.arn_suffix
    target_group_suffix = aws_lb_target_group.this.arn_suffix
  }
}
