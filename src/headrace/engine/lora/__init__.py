"""LoRA adapters: read from PEFT directories, kept in bounded numbers, added to the rows that ask for them."""
