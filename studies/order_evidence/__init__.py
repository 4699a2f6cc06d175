"""Compare objectives over all ordered pairs with those of other libraries, on held-out rows."""
