"""`headrace`, the command line: the only place that sees both sides."""
