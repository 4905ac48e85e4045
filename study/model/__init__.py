"""The encoder with its heads, loss, optimisers and kernels, and its conversion to transformers. Files nothing."""
