"""Simulated GPUs: devices that a server gets by ``gpus="simulated:2"``."""
