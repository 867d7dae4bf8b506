"""Housekeeping: feeds tickets, sweeps, delivers webhooks. Any number may run; each duty has one leader."""
