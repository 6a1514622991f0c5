"""The course: lessons that are pages of docs/lessons, what they run, and the stored answers."""
