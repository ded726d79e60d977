"""The structured note: what events and files prove, and beside it what a model wrote, checked against them.

fields    the names of what a model fills in
evidence  what a record proves, found once for everything that asks
observed  the fields that need no model
claims    what a model's statements say that the record denies, or does not bear out
note      the whole note as text, within its budget
reading   fields from whatever a model replied
writing   how a model is asked for its notes
"""
