"""The encoder with its heads, loss, optimisers and kernels, and its conversion to transformers. Nothing is filed here."""
