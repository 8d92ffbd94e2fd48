"""Gates, history and claims: what fails a change that makes training slower."""
