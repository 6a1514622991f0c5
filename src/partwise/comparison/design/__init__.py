"""The design of a comparison: arms, seeds, plan and matched sizes."""
