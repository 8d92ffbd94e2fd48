"""FLOPs of a model: its workload per token, and formulas that compute FLOPs from it."""
