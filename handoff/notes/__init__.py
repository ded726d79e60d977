"""The structured note: fields that events and files prove, and a model's statements, checked against them."""
