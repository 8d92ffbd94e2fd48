"""Count the FLOPs of a model: its workload per token, and the formulas that turn it into FLOPs."""
