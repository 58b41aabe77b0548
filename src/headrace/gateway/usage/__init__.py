"""What an answer says it cost in tokens, in every form, and the route that sums it up."""
