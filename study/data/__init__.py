"""From text to packed tokens: corpora, tokenisers, token files; whatever is built here is cached outside the repository."""
