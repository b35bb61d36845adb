"""Static analysis of models: costs, memory, structure, attention, differences. No arithmetic of the model is run."""
