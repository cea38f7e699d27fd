"""KServe v2's messages: read, checked, written; the same for all protocols."""
