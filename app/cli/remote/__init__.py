"""The commands that work on a running server: what they share is here in framework.py, output.py, destination.py,
contexts.py and secret_input.py, and a module per noun has its verbs."""
