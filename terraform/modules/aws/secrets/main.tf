# A key of the region, and an empty secret for each process. Terraform never sees a value: `penstock certs issue` makes
# the identities, and an operator puts them there (README). A machine may read the secrets of its own process alone.

data "aws_caller_identity" "this" {}

data "aws_region" "this" {}

data "aws_iam_policy_document" "key" {
  #checkov:skip=CKV_AWS_109:A key policy applies to its key alone; resources = * is the only form it has.
  #checkov:skip=CKV_AWS_111:As above.
  #checkov:skip=CKV_AWS_356:As above.
  statement {
    sid       = "Administration"
    actions   = ["kms:*"]
    resources = ["*"]
    principals {
      type        = "AWS"
      identifiers = var.admins
    }
  }
  statement {
    sid       = "Machines"
    actions   = ["kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*", "kms:DescribeKey", "kms:CreateGrant"]
    resources = ["*"]
    principals {
      type        = "AWS"
      identifiers = ["*"]
    }
    condition {
      test     = "StringEquals"
      variable = "kms:CallerAccount"
      values   = [data.aws_caller_identity.this.account_id]
    }
    condition {
      test     = "StringLike"
      variable = "kms:ViaService"
      values   = [for service in ["ec2", "secretsmanager", "elasticache", "s3", "sns"] : "${service}.${data.aws_region.this.name}.amazonaws.com"]
    }
  }
  statement {
    sid       = "Logs"
    actions   = ["kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*", "kms:DescribeKey"]
    resources = ["*"]
    principals {
      type        = "Service"
      identifiers = ["logs.${data.aws_region.this.name}.amazonaws.com", "cloudwatch.amazonaws.com"]
    }
    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.this.account_id]
    }
  }
}

resource "aws_kms_key" "this" {
  description             = "Penstock in ${var.region}: volumes, secrets, logs, Redis"
  enable_key_rotation     = true
  deletion_window_in_days = 30
  policy                  = data.aws_iam_policy_document.key.json
}

resource "aws_kms_alias" "this" {
  name          = "alias/penstock-${var.region}"
  target_key_id = aws_kms_key.this.key_id
}

resource "aws_secretsmanager_secret" "identity" {
  #checkov:skip=CKV2_AWS_57:The fleet's authority is offline: `penstock certs rotate` renews certificates, not a Lambda function.
  for_each = var.processes

  name        = "penstock/${var.region}/${each.key}/identity"
  description = "JSON of the files of the identity directory: tls.key, tls.crt, ca.crt, and region.key of an agent"
  kms_key_id  = aws_kms_key.this.arn
}

resource "aws_secretsmanager_secret" "admin" {
  #checkov:skip=CKV2_AWS_57:Replaced by an operator together with the clients that use it.
  count = length(var.administered) > 0 ? 1 : 0

  name        = "penstock/${var.region}/admin"
  description = "The admin's credential: the same line for every control plane of the fleet"
  kms_key_id  = aws_kms_key.this.arn
}
