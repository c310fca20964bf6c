output "agents" {
  description = "Per region and agent: its host and zone, and the environment to start penstock-agent with."
  value       = module.topology.agents
}

output "endpoints_files" {
  description = "Per region: the text of the file of its GPU endpoints."
  value       = module.topology.endpoints_files
}

output "control_planes" {
  description = "Per control plane: its host, region and zone, and the environment to start penstock serve with."
  value       = module.topology.control_planes
}

output "etcd" {
  description = "The cluster: the initial-cluster string, what clients are given, and its members."
  value       = module.topology.etcd
}

output "firewall_rules" {
  description = "Who may open a TCP connection to whom; everything else is denied."
  value       = module.topology.firewall_rules
}

output "dns_names" {
  description = "Every name to make."
  value       = module.topology.dns_names
}

output "prometheus_scrape_configs" {
  description = "Value of scrape_configs in prometheus.yml."
  value       = module.topology.prometheus_scrape_configs
}

output "policy_regions_file" {
  description = "The text of a policy file that declares the regions."
  value       = module.topology.policy_regions_file
}
