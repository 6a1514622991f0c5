"""The implementations of the commands that `model_commands.py` and `comparison_commands.py` declare."""
