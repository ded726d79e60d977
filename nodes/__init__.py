if __name__ == "nodes":  # the short name in a checkout
    from langgraph_takeover._checkout import alias

    alias(__name__)
