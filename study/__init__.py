"""A workbench that answers scaling questions about masked-language-model encoders with evidence."""
