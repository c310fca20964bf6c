# No provider: this module only computes. What it computes is what modules for a cloud, or a person, then build.
terraform {
  required_version = ">= 1.9.0" # validation blocks refer to other variables
}
