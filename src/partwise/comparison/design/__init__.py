"""The design of a comparison: arms, seeds and plan."""
