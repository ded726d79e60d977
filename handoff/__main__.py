"""`python -m handoff`: the command line of the runtime, which lives in `graph.cli`."""

from langgraph_takeover.graph.cli.main import main

if __name__ == "__main__":
    main()
