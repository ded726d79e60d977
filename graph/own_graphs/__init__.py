"""Parts of the runtime for graphs of other programs. The middleware needs the extra `langchain`."""
