"""The path of every request. Compiled: docs/compiled.md."""
