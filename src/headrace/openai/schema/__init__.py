"""Requests and responses as msgspec Structs, a file for each route. Nothing here decides anything."""
