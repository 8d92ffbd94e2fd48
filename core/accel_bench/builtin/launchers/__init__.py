"""Launcher plugins in the box, and the agents by which they start ranks on other machines.

Launchers elsewhere may use `agents`, `started`, `places` and `agent.run_agent`; they may change
before 1.0.
"""
