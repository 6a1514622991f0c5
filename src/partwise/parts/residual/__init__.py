"""Residual wiring: how blocks join their branches."""
