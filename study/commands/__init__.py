"""The command line by subject: each command parses, calls one function, and shows what it returns."""
