"""Exit codes of the command line: part of the public contract. Standard library only."""

DONE = 0
FAILED = 1  # the work failed
WRONG_USE = 2
OUT_OF_REACH = 3  # the service, the database or the broker
CANNOT_RUN = 4  # this machine lacks what the part needs: a supervisor does not start it again
FINAL = frozenset({WRONG_USE, CANNOT_RUN})
