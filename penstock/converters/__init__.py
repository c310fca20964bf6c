"""Engine APIs of several requests that agents operate for a client that sends one."""
