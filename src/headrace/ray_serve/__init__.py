"""Engines and their gateway as one Ray Serve application. Ray is imported where it is used, never by importing this."""
