"""Searches: changes tried one after another, and which of them are kept. Imports no torch."""
