"""Figures and inspection pages."""
