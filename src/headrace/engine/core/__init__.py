"""The engine core: decides what each step computes, in a process of its own. Tensors are the executor's."""
