"""Where endpoints come from. A new source is a new file here; today there is the fixed list."""
