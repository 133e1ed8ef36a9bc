"""Arrays in, arrays out: the attention kernels and what they need, in jax alone."""
