"""The studio: a local page in the browser that starts the commands of a terminal and shows what they write."""
