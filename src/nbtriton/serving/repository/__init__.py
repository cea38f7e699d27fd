"""Model repositories: loading, control, export, and verification against the real tritonserver."""
