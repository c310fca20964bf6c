"""The configuration store in etcd."""
