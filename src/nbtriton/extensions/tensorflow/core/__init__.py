"""The execution of a batch by the tensorflow backend. Compiled: docs/compiled.md."""
