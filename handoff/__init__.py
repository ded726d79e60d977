if __name__ == "handoff":  # the short name in a checkout
    from langgraph_takeover._checkout import alias

    alias(__name__)
