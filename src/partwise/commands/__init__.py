"""What the commands do, once `cli.py` has read their words; one file per kind of work."""
