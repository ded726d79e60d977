"""An MCP server with which any MCP client takes part in handoffs."""
