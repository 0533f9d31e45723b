"""The gate controller: decides which waiting jobs are released, and writes that to the API server."""
