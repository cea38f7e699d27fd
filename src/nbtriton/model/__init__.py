"""What a model is (`config`) and what flows through it (`tensors`)."""
