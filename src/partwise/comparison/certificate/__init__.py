"""Certificates: what was planned, what ran where, its values and verdicts, as one file that others can check."""
