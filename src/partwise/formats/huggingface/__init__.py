"""Models of Hugging Face's `transformers`: a family is a correspondence of configurations and tensor names.

A configuration belongs to a family if writing it as the family's `config.json` and reading it back restores every option
that determines the function; the tests compare the logits with those of `transformers`.
"""
