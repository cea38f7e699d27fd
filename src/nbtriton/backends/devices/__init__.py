"""Devices: where arrays live and work runs. Importing this imports no framework."""
