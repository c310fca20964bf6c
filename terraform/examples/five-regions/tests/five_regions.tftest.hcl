# The example is what it says: five regions, the EU's two among them, and nothing about it needs an excuse.

run "fleet" {
  command = plan

  assert {
    condition     = keys(output.agents) == ["eu-de", "eu-es", "eu-gb", "jp-tok", "us-east"]
    error_message = "the regions of the demo"
  }
  assert {
    condition     = [for text in split("---\n", output.policy_regions_file) : yamldecode(text).country] == ["DE", "ES", "GB", "JP", "US"]
    error_message = "where the regions stand"
  }
  assert {
    condition     = length(output.etcd.members) == 3 && length(distinct([for member in output.etcd.members : member.region])) == 3
    error_message = "etcd survives the loss of any one region"
  }
  assert {
    condition     = length(distinct(flatten([for agents in output.agents : [for agent in agents : agent.host]]))) == 11
    error_message = "eleven agents, each with a name of its own"
  }
}
