"""The command line by subject: each command parses, calls one function, and shows the result. Nothing is computed here."""
