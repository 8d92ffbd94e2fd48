"""What can stop a change: gate, history, reference and claims."""
