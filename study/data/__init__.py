"""From text to packed tokens: corpora, tokenisers and token files, cached outside the repository. It knows no encoder."""
