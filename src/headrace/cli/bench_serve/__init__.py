"""`headrace bench serve`: loads any OpenAI endpoint with an open loop of requests and says how it answered."""
