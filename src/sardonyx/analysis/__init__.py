"""What can be read from a model without running its arithmetic: costs, memory, structure, attention, differences."""
