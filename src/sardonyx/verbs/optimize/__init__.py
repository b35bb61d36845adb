"""`sardonyx.optimize`: run passes, verify the result, roll back failing rewrites, and tune for this machine."""
