# No provider: this module only computes.
terraform {
  required_version = ">= 1.9.0"
}
