"""Of each benchmark's own JSON, the figures and bars that are kept; a module for each."""
