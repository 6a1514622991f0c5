"""Hand-made kernels for the few places where they beat what torch brings; each has a plain form that computes the same."""
