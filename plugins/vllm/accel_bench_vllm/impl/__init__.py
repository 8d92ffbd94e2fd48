"""The parts that need torch and vLLM."""
