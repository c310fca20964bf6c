# One machine for one process: its secrets are fetched into memory when it starts and every hour, so that a renewed
# certificate is used without a restart.

data "aws_iam_policy_document" "assume" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

data "aws_iam_policy_document" "secrets" {
  statement {
    actions   = ["secretsmanager:GetSecretValue"]
    resources = values(var.fetched_files)
  }
  statement {
    actions   = ["kms:Decrypt"]
    resources = [var.kms_key_arn]
  }
}

resource "aws_iam_role" "this" {
  name               = var.name
  assume_role_policy = data.aws_iam_policy_document.assume.json
}

resource "aws_iam_role_policy" "secrets" {
  name   = "secrets"
  role   = aws_iam_role.this.id
  policy = data.aws_iam_policy_document.secrets.json
}

# Access by Session Manager: no port for SSH is open.
resource "aws_iam_role_policy_attachment" "session_manager" {
  role       = aws_iam_role.this.name
  policy_arn = "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_instance_profile" "this" {
  name = var.name
  role = aws_iam_role.this.name
}

resource "aws_instance" "this" {
  ami                         = var.ami_id
  instance_type               = var.instance_type
  subnet_id                   = var.subnet_id
  vpc_security_group_ids      = [var.security_group_id]
  iam_instance_profile        = aws_iam_instance_profile.this.name
  associate_public_ip_address = false
  ebs_optimized               = true
  monitoring                  = true
  disable_api_termination     = true
  user_data_replace_on_change = false

  # Compressed: EC2 accepts 16 KB, and an endpoints file may be longer.
  user_data_base64 = base64gzip(templatefile("${path.module}/cloud-config.yaml.tftpl", {
    environment   = var.environment
    files         = var.files
    fetched_files = var.fetched_files
    unit          = var.unit
    mount_point   = var.data_volume == null ? "" : var.data_volume.mount_point
  }))

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    encrypted   = true
    kms_key_id  = var.kms_key_arn
    volume_type = "gp3"
    volume_size = 20
  }

  tags = { Name = var.name }
}

resource "aws_ebs_volume" "data" {
  count = var.data_volume == null ? 0 : 1

  availability_zone = var.zone
  size              = var.data_volume.size_gb
  type              = "gp3"
  encrypted         = true
  kms_key_id        = var.kms_key_arn

  tags = { Name = "${var.name}-data" }

  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_volume_attachment" "data" {
  count = var.data_volume == null ? 0 : 1

  device_name = "/dev/sdf"
  volume_id   = aws_ebs_volume.data[0].id
  instance_id = aws_instance.this.id
}

resource "aws_route53_record" "this" {
  zone_id = var.private_zone_id
  name    = var.host
  type    = "A"
  ttl     = 60
  records = [aws_instance.this.private_ip]
}
