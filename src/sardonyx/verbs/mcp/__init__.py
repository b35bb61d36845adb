"""`sardonyx mcp`: the commands as tools of an MCP server."""
