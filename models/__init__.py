"""Tables, transitions and the contract that both sides share. No weights in here: those are networks.

`OWNER` lets the entry points check that the `models` they imported is this one.
"""

OWNER = "headrace"
__version__ = "0.2.0.dev0"
