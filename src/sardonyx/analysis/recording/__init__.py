"""Watches a torch model run, for real or on tensors without data, and writes down the Program it carried out."""
