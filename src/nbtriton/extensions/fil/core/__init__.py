"""The execution of a batch by the fil backend. Compiled: docs/compiled.md."""
