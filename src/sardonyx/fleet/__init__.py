"""Many models: independent pieces of work, run on any executor, with results in a folder or at a URL."""
