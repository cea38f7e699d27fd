"""Measure (`perf`), predict (`simulate`), explain, and keep traffic (`recordings`)."""
