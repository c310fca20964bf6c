"""Operates the engine APIs of several requests for a client that sends one."""
