"""Reading, checking and writing of KServe v2's messages, for all protocols."""
