"""Any code as trials of a comparison: commands, commits and functions. Nothing here imports torch."""
