"""Attention layers: multi-head, multi-head latent (MLA) and differential."""
