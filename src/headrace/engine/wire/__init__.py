"""What crosses between front end and core, and how."""
