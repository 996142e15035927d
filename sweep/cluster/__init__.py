"""Sweeps on many machines: a cluster's file checked before it costs anything, and a sweep handed to a cluster."""
