"""Measure speed, accuracy and size of everypair and of comparable libraries, as tidy rows."""
