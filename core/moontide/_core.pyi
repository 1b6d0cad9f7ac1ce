"""Types of the native core; tests/tidy compares this file with what the module exports."""

version: str
