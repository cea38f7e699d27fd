"""The execution of a batch by the onnxruntime backend. Compiled: docs/compiled.md."""
