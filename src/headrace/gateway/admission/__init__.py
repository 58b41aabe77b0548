"""Whether a request may go on: today its length and how many are under way. Pure."""
