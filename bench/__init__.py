"""What nbtriton costs, beside what one would use instead: ``python -m bench --list``."""
