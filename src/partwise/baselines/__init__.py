"""Reference models without gradients: n-gram language models and constant answers."""
