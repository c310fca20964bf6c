output "topic_arn" {
  description = "ARN of the topic; subscribe a pager to it."
  value       = aws_sns_topic.this.arn
}
