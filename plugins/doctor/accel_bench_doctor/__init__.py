"""Check this machine: installed versions, known conflicts, and its noise floor."""
