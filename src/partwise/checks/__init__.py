"""What a part must satisfy, measured: for the parts of this package by the contract tests, for others before they train."""
