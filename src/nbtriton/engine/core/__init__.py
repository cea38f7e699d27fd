"""What every request runs through. Compiled: docs/compiled.md."""
