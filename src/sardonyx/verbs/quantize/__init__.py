"""Lower precision: recipes as passes, their float32 simulation, the measured loss, and `sardonyx.quantize`."""
