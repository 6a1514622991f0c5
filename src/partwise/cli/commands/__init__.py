"""The implementations of the commands that the files `*_commands.py` declare."""
