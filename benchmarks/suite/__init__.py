"""Behind `make bench`: what is run, what is kept of it, and the page that is made of that."""
