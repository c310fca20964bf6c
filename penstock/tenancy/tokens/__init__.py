"""Tokens of identity providers (JWT): their claims, and the keys that verify them."""
