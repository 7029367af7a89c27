"""The compiler: from a spec to source text, in rooms by stage.

Imports point one way: ir -> printing, exact -> recurrence -> attention, programs, performance -> commands; claims stand alone.
"""
