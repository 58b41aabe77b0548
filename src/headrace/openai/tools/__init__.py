"""Tool calls: what a request may say of them, the forms in which models write them, and reading them back. Pure."""
