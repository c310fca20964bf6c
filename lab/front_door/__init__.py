"""The front-door demo: clients that resolve names by DNS and enter through Envoy or an agent, while a region fails."""
