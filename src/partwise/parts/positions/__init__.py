"""Positions: learned, sinusoidal, rotary, and attention biases."""
