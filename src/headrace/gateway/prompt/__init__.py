"""What a request brings, in tokens: tokenizers here and at endpoints, counting, and routes answered with them."""
