"""Tasks of EleutherAI's lm-evaluation-harness, `lm_eval`, on our models."""
