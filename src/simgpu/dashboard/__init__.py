"""The live page of a fleet, a box or a node, and the JSON API and event stream behind it. Read-only.

Nothing is computed while nobody looks: answers come from the machine's columns when they are asked for.
"""
