"""Each option once: its name, type, default, bound and help, for Python, magics, command lines and docs.

A family of options is a `TypedDict`; the field of an option is annotated with its type and an `Option`. From it
come the signature of a function (`takes`), the arguments of a parser (`add_arguments`), the check of what was
given (`complete`) and the table of a page (`rows`).
"""

from nbtriton.options.table import Option, add_arguments, complete, rows, table, takes

__all__ = ["Option", "add_arguments", "complete", "rows", "table", "takes"]
