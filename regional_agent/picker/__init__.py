"""The endpoint picker: Envoy's External Processing API, by which Envoy asks for the endpoint of each request."""
