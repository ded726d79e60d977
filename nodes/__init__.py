"""Graph nodes, and what an agent needs: tools, protocols, settings, session."""

if __name__ == "nodes":  # the short name in a checkout
    from langgraph_takeover._checkout import alias

    alias(__name__)
