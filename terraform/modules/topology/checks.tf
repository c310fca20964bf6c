# Warnings: a fleet may be built like this, but somebody should have decided to.

check "every_bloc_survives_the_loss_of_a_region" {
  assert {
    condition = length(local.thin_blocs) == 0
    error_message = join(" ", [
      "Residency blocs with a single region: ${join(", ", local.thin_blocs)}.",
      "If it is lost, traffic confined to the bloc is refused; add a region there.",
    ])
  }
}

check "every_model_of_a_bloc_survives_the_loss_of_a_region" {
  assert {
    condition = length(local.thin_models) == 0
    error_message = join(" ", [
      "Models that a single region of a residency bloc serves: ${join(", ", local.thin_models)}.",
      "If it is lost, confined traffic for them is refused; add a pool in another region of the bloc.",
    ])
  }
}

locals {
  regions_of_bloc = {
    for bloc in var.residency_blocs : bloc => [for region in var.regions : region if contains(region.jurisdictions, bloc)]
  }
  thin_blocs = sort([for bloc, regions in local.regions_of_bloc : bloc if length(regions) < 2])

  servers_of_bloc_model = {
    for pair in flatten([
      for bloc, regions in local.regions_of_bloc : [
        for region in regions : [for model in distinct(region.pools[*].model) : { key = "${model} in ${bloc}", region = region.name }]
      ]
    ]) : pair.key => pair.region...
  }
  thin_models = sort([for key, servers in local.servers_of_bloc_model : key if length(servers) < 2])
}
