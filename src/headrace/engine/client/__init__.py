"""The front end's side of a core: where it runs, how it is started, watched and spoken to."""
