"""Errors of a machine that has too little memory, as one line."""

OUT_OF_MEMORY = (
    "out of memory: lower train.batch_size or the context, or raise train.grad_accumulation; `partwise inspect PRESET "
    "memory` says what a training step takes. Checkpoints are intact: the same command resumes"
)
ALLOCATORS = ("can't allocate memory", "not enough memory", "bad_alloc")
"""What errors of torch's CPU allocator and of C++ say."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether Python, torch or a C++ kernel had too little memory. By names: torch may not be imported."""
    known = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return known or (isinstance(error, RuntimeError) and any(text in str(error) for text in ALLOCATORS))
