"""Tables, transitions and the contract that both sides share. Not machine-learning weights: those are networks.

`OWNER` lets the entry points check that the `models` they imported is this one.
"""

OWNER = "headrace"
__version__ = "0.1.0"
