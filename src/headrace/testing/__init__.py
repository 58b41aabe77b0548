"""Doubles that we ship, for our tests and for those of programs that use Headrace."""
