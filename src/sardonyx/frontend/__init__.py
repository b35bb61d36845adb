"""The torch side: where a model comes from, how it is exported, and which module every node was run by."""
