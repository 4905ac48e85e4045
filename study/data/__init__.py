"""From text to packed tokens: corpora, tokenisers and token files, cached outside the repository. Knows no encoder."""
