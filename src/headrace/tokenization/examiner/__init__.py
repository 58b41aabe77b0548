"""A process that has the reference tokenizer, compares the shortcuts with it, and ends when it has answered.

What serves need not hold the reference then: neither the memory, nor the interpreter while a large one loads.
"""
