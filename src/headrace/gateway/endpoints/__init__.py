"""The endpoints: what is known of each, how they come, are probed and go."""
