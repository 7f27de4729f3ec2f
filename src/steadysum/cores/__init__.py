"""The emulated many-core device: the vendor's kernel as programs, and the faults that can be armed on it."""
