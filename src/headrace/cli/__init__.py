"""The command line. The only place that reads flags, settings files and the environment."""
