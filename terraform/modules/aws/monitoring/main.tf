# Alarms on what Penstock cannot report of itself: machines and load balancers. Those of the fleet are Prometheus rules
# (dashboards/), on the machine that scrapes the topology's targets.

resource "aws_sns_topic" "this" {
  name              = "penstock-${var.region}"
  kms_master_key_id = var.kms_key_arn
}

resource "aws_cloudwatch_metric_alarm" "unready_agents" {
  alarm_name          = "penstock-${var.region}-agents-unready"
  alarm_description   = "Fewer than half of the agents of ${var.region} are ready at the load balancer."
  namespace           = "AWS/NetworkELB"
  metric_name         = "HealthyHostCount"
  statistic           = "Minimum"
  comparison_operator = "LessThanThreshold"
  threshold           = ceil(var.agents / 2)
  period              = 60
  evaluation_periods  = 2
  treat_missing_data  = "breaching"
  alarm_actions       = [aws_sns_topic.this.arn]
  ok_actions          = [aws_sns_topic.this.arn]

  dimensions = {
    LoadBalancer = var.load_balancer.arn_suffix
    TargetGroup  = var.load_balancer.target_group_suffix
  }
}

resource "aws_cloudwatch_metric_alarm" "machine" {
  for_each = var.instances

  alarm_name          = "penstock-${var.region}-${each.key}-status"
  alarm_description   = "The machine of ${each.key} fails its status checks."
  namespace           = "AWS/EC2"
  metric_name         = "StatusCheckFailed"
  statistic           = "Maximum"
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  period              = 60
  evaluation_periods  = 2
  treat_missing_data  = "breaching"
  alarm_actions       = [aws_sns_topic.this.arn]
  ok_actions          = [aws_sns_topic.this.arn]

  dimensions = {
    InstanceId = each.value
  }
}
