# What is refused, each for one reason: the rest of every fleet here is sound.

variables {
  domain = "penstock.example.internal"
  regions = [
    { name = "eu-de", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
  ]
  control_planes = [
    { name = "cp-1", region = "eu-de", zone = "a" },
    { name = "cp-2", region = "eu-es", zone = "a" },
  ]
  etcd_members = [
    { name = "etcd-1", region = "eu-de", zone = "a" },
    { name = "etcd-2", region = "eu-de", zone = "b" },
    { name = "etcd-3", region = "eu-es", zone = "a" },
  ]
}

run "the_rest_is_sound" {
  command = plan
}

run "domain_is_no_domain" {
  command = plan

  variables {
    domain = "Penstock"
  }

  expect_failures = [var.domain]
}

run "no_region" {
  command = plan

  variables {
    regions = []
  }

  expect_failures = [var.regions]
}

run "two_regions_of_one_name" {
  command = plan

  variables {
    regions = [
      { name = "eu-de", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
      { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
      { name = "eu-de", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    ]
  }

  expect_failures = [var.regions]
}

run "region_name_is_no_dns_label" {
  command = plan

  variables {
    regions = [
      { name = "eu-de", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
      { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
      { name = "EU_FR", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    ]
  }

  expect_failures = [var.regions]
}

run "country_is_no_code" {
  command = plan

  variables {
    regions = [
      { name = "eu-de", location = { country = "Germany", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
      { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    ]
  }

  expect_failures = [var.regions]
}

run "country_is_not_among_the_jurisdictions" {
  command = plan

  variables {
    regions = [
      { name = "eu-de", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
      { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    ]
  }

  expect_failures = [var.regions]
}

run "off_the_globe" {
  command = plan

  variables {
    regions = [
      { name = "eu-de", location = { country = "DE", latitude_deg = 95, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
      { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    ]
  }

  expect_failures = [var.regions]
}

run "no_zones" {
  command = plan

  variables {
    regions = [
      { name = "eu-de", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
      { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
      { name = "eu-fr", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = [], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    ]
  }

  expect_failures = [var.regions]
}

run "one_agent" {
  command = plan

  variables {
    regions = [
      { name = "eu-de", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }], agents = 1 },
      { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    ]
  }

  expect_failures = [var.regions]
}

run "one_agent_accepted_elsewhere" {
  command = plan

  variables {
    regions = [
      { name = "eu-de", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }], agents = 1 },
      { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    ]
    accepted_risks = { single_agent_regions = ["eu-es"] }
  }

  expect_failures = [var.regions]
}

run "no_agent_even_if_one_is_accepted" {
  command = plan

  variables {
    regions = [
      { name = "eu-de", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }], agents = 0 },
      { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    ]
    accepted_risks = { single_agent_regions = ["eu-de"] }
  }

  expect_failures = [var.regions]
}

run "half_an_endpoint" {
  command = plan

  variables {
    regions = [
      { name = "eu-de", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1.5, slots = 8 }] },
      { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    ]
  }

  expect_failures = [var.regions]
}

run "no_slots" {
  command = plan

  variables {
    regions = [
      { name = "eu-de", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 0 }] },
      { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    ]
  }

  expect_failures = [var.regions]
}

run "pool_in_a_zone_that_is_not_there" {
  command = plan

  variables {
    regions = [
      { name = "eu-de", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8, zones = ["c"] }] },
      { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    ]
  }

  expect_failures = [var.regions]
}

run "pool_port_out_of_range" {
  command = plan

  variables {
    regions = [
      { name = "eu-de", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8, port = 70000 }] },
      { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    ]
  }

  expect_failures = [var.regions]
}

run "two_pools_of_one_kind" {
  command = plan

  variables {
    regions = [
      { name = "eu-de", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }, { model = "M", accelerator = "h100", endpoints = 2, slots = 8 }] },
      { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    ]
  }

  expect_failures = [output.endpoints_files]
}

run "proxies_are_no_range" {
  command = plan

  variables {
    regions = [
      { name = "eu-de", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }], trusted_proxies = ["everywhere"] },
      { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    ]
  }

  expect_failures = [var.regions]
}

run "one_control_plane" {
  command = plan

  variables {
    control_planes = [{ name = "cp-1", region = "eu-de", zone = "a" }]
  }

  expect_failures = [var.control_planes]
}

run "control_planes_of_one_name" {
  command = plan

  variables {
    control_planes = [{ name = "cp-1", region = "eu-de", zone = "a" }, { name = "cp-1", region = "eu-es", zone = "a" }]
  }

  expect_failures = [var.control_planes]
}

run "control_plane_nowhere" {
  command = plan

  variables {
    control_planes = [{ name = "cp-1", region = "eu-de", zone = "a" }, { name = "cp-2", region = "eu-ed", zone = "a" }]
  }

  expect_failures = [var.control_planes]
}

run "control_planes_in_one_zone" {
  command = plan

  variables {
    control_planes = [{ name = "cp-1", region = "eu-de", zone = "a" }, { name = "cp-2", region = "eu-de", zone = "a" }]
  }

  expect_failures = [var.control_planes]
}

run "an_even_number_of_etcd_members" {
  command = plan

  variables {
    etcd_members = [
      { name = "e1", region = "eu-de", zone = "a" },
      { name = "e2", region = "eu-de", zone = "b" },
      { name = "e3", region = "eu-es", zone = "a" },
      { name = "e4", region = "eu-es", zone = "b" },
    ]
  }

  expect_failures = [var.etcd_members]
}

run "one_etcd_member" {
  command = plan

  variables {
    etcd_members = [
      { name = "e1", region = "eu-de", zone = "a" },
    ]
  }

  expect_failures = [var.etcd_members]
}

run "no_etcd_member" {
  command = plan

  variables {
    etcd_members = [

    ]
  }

  expect_failures = [var.etcd_members]
}

run "etcd_members_of_one_name" {
  command = plan

  variables {
    etcd_members = [
      { name = "e1", region = "eu-de", zone = "a" },
      { name = "e1", region = "eu-de", zone = "b" },
      { name = "e3", region = "eu-es", zone = "a" },
    ]
  }

  expect_failures = [var.etcd_members]
}

run "etcd_member_nowhere" {
  command = plan

  variables {
    etcd_members = [
      { name = "e1", region = "eu-de", zone = "a" },
      { name = "e2", region = "eu-de", zone = "z" },
      { name = "e3", region = "eu-es", zone = "a" },
    ]
  }

  expect_failures = [var.etcd_members]
}

run "etcd_in_two_failure_domains" {
  command = plan

  variables {
    etcd_members = [
      { name = "e1", region = "eu-de", zone = "a" },
      { name = "e2", region = "eu-de", zone = "a" },
      { name = "e3", region = "eu-es", zone = "a" },
    ]
  }

  expect_failures = [var.etcd_members]
}

run "a_failure_domain_with_the_quorum_of_etcd" {
  command = plan

  variables {
    etcd_members = [
      { name = "e1", region = "eu-de", zone = "a" },
      { name = "e2", region = "eu-de", zone = "a" },
      { name = "e3", region = "eu-de", zone = "a" },
      { name = "e4", region = "eu-de", zone = "b" },
      { name = "e5", region = "eu-es", zone = "a" },
    ]
  }

  expect_failures = [var.etcd_members]
}

run "bloc_without_a_region" {
  command = plan

  variables {
    residency_blocs = ["UE"]
  }

  expect_failures = [var.residency_blocs]
}

run "bloc_with_one_region" {
  command = plan

  variables {
    residency_blocs = ["DE"]
  }

  expect_failures = [check.every_bloc_survives_the_loss_of_a_region, check.every_model_of_a_bloc_survives_the_loss_of_a_region]
}

run "model_in_one_region_of_the_bloc" {
  command = plan

  variables {
    regions = [
      { name = "eu-de", location = { country = "DE", latitude_deg = 50, longitude_deg = 8 }, jurisdictions = ["DE", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }, { model = "rare", accelerator = "h100", endpoints = 1, slots = 8 }] },
      { name = "eu-es", location = { country = "ES", latitude_deg = 40, longitude_deg = -3 }, jurisdictions = ["ES", "EU"], zones = ["a", "b"], pools = [{ model = "m", accelerator = "h100", endpoints = 1, slots = 8 }] },
    ]
    residency_blocs = ["EU"]
  }

  expect_failures = [check.every_model_of_a_bloc_survives_the_loss_of_a_region]
}

run "port_out_of_range" {
  command = plan

  variables {
    ports = { redis = 0 }
  }

  expect_failures = [var.ports]
}

run "port_used_twice" {
  command = plan

  variables {
    ports = { agent_peer = 8080 }
  }

  expect_failures = [var.ports]
}

run "path_is_relative" {
  command = plan

  variables {
    paths = { identity_dir = "identity" }
  }

  expect_failures = [var.paths]
}
