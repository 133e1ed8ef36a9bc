"""Models, their attention, their training and their decoding; it knows nothing of music."""
