"""What a comparison runs: trials of a workload, by an executor."""
