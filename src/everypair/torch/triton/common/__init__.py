"""What all Triton plans share: launches, the layout of the work space, double-double numbers.

Plans import it; it imports no plan.
"""
