"""What several passes need: reading operands, views and channels, and evaluating constants."""
