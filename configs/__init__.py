"""One experiment is one file with one function, `config()`."""
