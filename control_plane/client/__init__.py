"""How anyone talks to the control plane's store: keys, codec, etcd, and the list-then-watch informer. A leaf."""
