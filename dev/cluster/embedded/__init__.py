"""Kubernetes on one machine for development: components built from Go modules, processes of this machine, no Docker."""
