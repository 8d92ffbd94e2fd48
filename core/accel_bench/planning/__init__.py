"""Planning of a scenario: experiments to run, and experiments to skip with reasons."""
