"""Statistics of paired seeds: intervals, sequential tests, power and verdicts."""
