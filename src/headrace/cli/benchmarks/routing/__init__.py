"""`headrace bench routing`: what policies make of a trace, beside Dynamo's router, and how long a decision takes."""
