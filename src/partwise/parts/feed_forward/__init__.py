"""Feed-forward layers: MLPs, gated MLPs and mixture of experts."""
