"""The control plane: collects reports of agents, plans the traffic of all regions, and publishes the plan in etcd."""
