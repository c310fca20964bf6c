"""Commands about where clients enter: steering, DNS names, anycast."""
