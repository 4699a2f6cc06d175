"""The paper's study as one command, and anyone's own data through the same door."""
