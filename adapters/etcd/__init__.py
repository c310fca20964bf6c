"""The configuration store in etcd."""

import os

# By default gRPC replaces its threads around each fork, also in the parent and before an exec: starting a process could
# then crash or block the one that starts it. gRPC reads the variable when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
