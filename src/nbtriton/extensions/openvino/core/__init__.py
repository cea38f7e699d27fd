"""The execution of a batch by the openvino backend. Compiled: docs/compiled.md."""
