"""Measured requirements of a part: the contract tests check those of this package, and training checks custom ones first."""
