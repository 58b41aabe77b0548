"""What happens to the blocks of the prefix cache, told to who routes by it."""
