"""The demonstration that `make demo` runs: real servers, real cache, checked answers."""
