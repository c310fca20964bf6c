"""HTTP/1.1 to engines and peer agents: connection pools, responses, DNS resolution."""
