"""The training loop, its optimizers and schedules, and run folders."""
