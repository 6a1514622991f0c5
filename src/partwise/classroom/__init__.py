"""A class of students: an assignment, and the comparisons that are handed in. Reads what others made; imports no torch."""
