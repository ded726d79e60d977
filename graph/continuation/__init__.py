"""Hand the work of an external agent at this host to another one: capture its session, prepare and undo a continuation."""
