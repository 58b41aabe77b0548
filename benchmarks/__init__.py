"""Measurements of this repository; `make bench` runs them all."""
