"""`python -m sandbox`: the command line, which is in `sandbox.cli.main`."""

from langgraph_takeover.sandbox.cli.main import main

if __name__ == "__main__":
    main()
