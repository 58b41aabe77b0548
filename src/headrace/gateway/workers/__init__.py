"""Many processes behind one port: what runs in the supervisor, and what little of it stands in each worker."""
