"""Live views in a notebook, each with a static form that stays.

A live view imports anywidget, a static form does not; the rest of nbtriton imports it only on first use.
"""
