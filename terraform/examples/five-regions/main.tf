# The five regions of `make demo`, as a fleet that could be built. London is nearer to Frankfurt than Madrid is, and is not
# in the EU: what is confined to the EU may use Frankfurt and Madrid alone.

terraform {
  required_version = ">= 1.9.0"
}

locals {
  model = "llama-3.1-8b"
}

module "topology" {
  source = "../../modules/topology"

  domain = "penstock.example.internal"

  regions = [
    {
      name          = "eu-de"
      location      = { country = "DE", city = "Frankfurt", latitude_deg = 50.11, longitude_deg = 8.68 }
      jurisdictions = ["DE", "EU", "EEA"]
      zones         = ["eu-de-1", "eu-de-2", "eu-de-3"]
      pools = [
        { model = local.model, accelerator = "h100", endpoints = 6, slots = 64 },
      ]
      trusted_proxies = ["10.10.0.0/16"]
    },
    {
      name          = "eu-es"
      location      = { country = "ES", city = "Madrid", latitude_deg = 40.42, longitude_deg = -3.7 }
      jurisdictions = ["ES", "EU", "EEA"]
      zones         = ["eu-es-1", "eu-es-2", "eu-es-3"]
      pools = [
        { model = local.model, accelerator = "h100", endpoints = 3, slots = 64 },
        { model = local.model, accelerator = "l40s", endpoints = 4, slots = 16 },
      ]
      trusted_proxies = ["10.20.0.0/16"]
    },
    {
      name          = "eu-gb"
      location      = { country = "GB", city = "London", latitude_deg = 51.51, longitude_deg = -0.13 }
      jurisdictions = ["GB"]
      zones         = ["eu-gb-1", "eu-gb-2", "eu-gb-3"]
      pools = [
        { model = local.model, accelerator = "a100", endpoints = 6, slots = 48 },
      ]
      trusted_proxies = ["10.30.0.0/16"]
    },
    {
      name          = "us-east"
      location      = { country = "US", city = "Washington DC", latitude_deg = 38.9, longitude_deg = -77.04 }
      jurisdictions = ["US"]
      zones         = ["us-east-1", "us-east-2", "us-east-3"]
      agents        = 3
      pools = [
        { model = local.model, accelerator = "h100", endpoints = 8, slots = 64 },
      ]
      trusted_proxies = ["10.40.0.0/16"]
    },
    {
      name          = "jp-tok"
      location      = { country = "JP", city = "Tokyo", latitude_deg = 35.68, longitude_deg = 139.69 }
      jurisdictions = ["JP"]
      zones         = ["jp-tok-1", "jp-tok-2", "jp-tok-3"]
      pools = [
        { model = local.model, accelerator = "h100", endpoints = 4, slots = 64, zones = ["jp-tok-1", "jp-tok-2"] },
      ]
      trusted_proxies = ["10.50.0.0/16"]
    },
  ]

  control_planes = [
    { name = "control-plane-1", region = "eu-de", zone = "eu-de-1" },
    { name = "control-plane-2", region = "us-east", zone = "us-east-1" },
  ]

  # Three zones of three regions: the loss of any one of them leaves two of three members.
  etcd_members = [
    { name = "etcd-1", region = "eu-de", zone = "eu-de-2" },
    { name = "etcd-2", region = "eu-gb", zone = "eu-gb-1" },
    { name = "etcd-3", region = "us-east", zone = "us-east-2" },
  ]

  residency_blocs = ["EU"]
}
